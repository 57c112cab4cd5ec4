package fleet

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
)

func readPage(t testing.TB, name string) []byte {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", name+".txt.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	page, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return page
}

func parse(page string) (Report, error) { return ParseMetrics(strings.NewReader(page), MaxPageBytes) }

func TestParseMetricsOfRealEngines(t *testing.T) {
	const usage = "vllm:kv_cache_usage_perc"
	for name, want := range map[string]Report{
		"metrics-idle-fresh": {Model: "tiny-qwen3", Engines: 1, KVUsageName: usage, BlockSize: 32, NumGPUBlocks: 512, UsableBlocks: 511,
			ProcessStartTime: 1796079300.36},
		"metrics-served": {Model: "tiny-qwen3", Engines: 1, KVUsageName: usage, BlockSize: 32, NumGPUBlocks: 512, UsableBlocks: 511,
			PrefixCacheQueries: 423383, PrefixCacheHits: 29440, ProcessStartTime: 1796079300.36},
		"metrics-small-pool": {Model: "tiny-qwen3", Engines: 1, KVUsageName: usage, BlockSize: 32, NumGPUBlocks: 41, UsableBlocks: 40,
			PrefixCacheQueries: 23129, PrefixCacheHits: 3360, ProcessStartTime: 1796079814.13},
		"metrics-running-2": {Model: "tiny-qwen3", Engines: 1, KVUsageName: usage, BlockSize: 32, NumGPUBlocks: 256, UsableBlocks: 255,
			Running: 2, KVUsage: 0.019607843137254943, PrefixCacheQueries: 82, PrefixCacheHits: 32, ProcessStartTime: 1796080733.96},
		"metrics-data-parallel-2": {Model: "tiny-qwen3", Engines: 2, KVUsageName: usage, BlockSize: 32, NumGPUBlocks: 512, UsableBlocks: 510,
			PrefixCacheQueries: 900, PrefixCacheHits: 384, ProcessStartTime: 1796081183.19},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ParseMetrics(bytes.NewReader(readPage(t, name)), MaxPageBytes)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("report (-want +got):\n%s", diff)
			}
		})
	}
	idle, _ := ParseMetrics(bytes.NewReader(readPage(t, "metrics-idle-fresh")), MaxPageBytes)
	served, _ := ParseMetrics(bytes.NewReader(readPage(t, "metrics-served")), MaxPageBytes)
	if Restarted(idle, served) || !Restarted(served, idle) {
		t.Error("want a restart seen from the later page to the earlier one only")
	}
}

// small is a page of two engines with distinct numbers.
const small = `# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
vllm:num_requests_waiting{engine="0",model_name="m"} 10.0
vllm:num_requests_waiting{engine="1",model_name="m"} 20.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 10.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 1.0
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 1e+06
vllm:prefix_cache_queries_total{engine="1",model_name="m"} 1.0
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 100.0
vllm:prefix_cache_hits_total{engine="1",model_name="m"} 200.0
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="100"} 1.0
vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="200"} 1.0
process_start_time_seconds 12.5
`

func TestParseMetricsTakesEnginesTogether(t *testing.T) {
	got, err := parse(small)
	if err != nil {
		t.Fatal(err)
	}
	want := Report{Model: "m", Engines: 2, Running: 7, Waiting: 30, KVUsage: 0.75, KVUsageName: "vllm:kv_cache_usage_perc",
		PrefixCacheQueries: 1_000_001, PrefixCacheHits: 300, BlockSize: 16, NumGPUBlocks: 300, UsableBlocks: 298, ProcessStartTime: 12.5}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("report (-want +got):\n%s", diff)
	}
}

func TestParseMetricsWithOlderNames(t *testing.T) {
	old := strings.NewReplacer("vllm:kv_cache", "vllm:gpu_cache", "vllm:prefix_cache", "vllm:gpu_prefix_cache").Replace(small)
	got, err := parse(old)
	if err != nil {
		t.Fatal(err)
	}
	if got.KVUsageName != "vllm:gpu_cache_usage_perc" || got.KVUsage != 0.75 || got.PrefixCacheHits != 300 {
		t.Errorf("report %+v, want the numbers under their older names", got)
	}
	both, err := parse(old + small)
	if err != nil {
		t.Fatal(err)
	}
	if both.KVUsageName != "vllm:kv_cache_usage_perc" || both.PrefixCacheHits != 300 {
		t.Errorf("report %+v, want each family once, under its newer name", both)
	}
}

func TestParseMetricsReadsUnsettledCacheConfigAsUnknown(t *testing.T) {
	got, err := parse(strings.NewReplacer(`num_gpu_blocks="100"`, `num_gpu_blocks="None"`, `num_gpu_blocks="200"`, `other="1"`, "process", "other").Replace(small))
	if err != nil {
		t.Fatal(err)
	}
	if got.BlockSize != 16 || got.NumGPUBlocks != 0 || got.UsableBlocks != 0 || got.ProcessStartTime != 0 || got.Running != 7 {
		t.Errorf("report %+v, want blocks and start unknown, the rest as it is", got)
	}
}

func TestParseMetricsNamesTheMissingFamily(t *testing.T) {
	for _, family := range []string{
		"vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc",
		"vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total", "vllm:cache_config_info",
	} {
		for _, page := range []string{small, string(readPage(t, "metrics-served"))} {
			renamed := strings.ReplaceAll(page, "\n"+family+"{", "\n"+family+"_v2{")
			got, err := parse(renamed)
			if !errors.Is(err, ErrUnreadable) || !strings.HasSuffix(err.Error(), family) {
				t.Errorf("without %s: error %v, want ErrUnreadable that names it", family, err)
			}
			if got != (Report{}) {
				t.Errorf("without %s: report %+v along with an error", family, got)
			}
		}
	}
}

func TestParseMetricsRefuses(t *testing.T) {
	edit := func(old, replacement string) string {
		if !strings.Contains(small, old) {
			t.Fatalf("no %q on the page", old)
		}
		return strings.Replace(small, old, replacement, 1)
	}
	for _, tc := range []struct{ name, page, fragment string }{
		{"an empty page", "", "vllm:num_requests_running"},
		{"another server's page", "<html>502 Bad Gateway</html>\n", "vllm:num_requests_running"},
		{"a page cut off within a number", small + "vllm:num_requests_running 1", "ends within a line"},
		{"a negative count", edit("} 3.0", "} -3"), "vllm:num_requests_running is -3"},
		{"no number", edit("} 3.0", "} three"), "text format"},
		{"NaN", edit("} 0.5", "} NaN"), "vllm:kv_cache_usage_perc is NaN"},
		{"infinity", edit("} 10.0", "} +Inf"), "vllm:num_requests_waiting is +Inf"},
		{"a count beyond float64's whole numbers", edit("1e+06", "1e+300"), "vllm:prefix_cache_queries_total"},
		{"usage in percent", edit("} 0.5", "} 50"), "over 1"},
		{"blocks that are no number", edit(`"100"`, `"many"`), `num_gpu_blocks is "many"`},
		{"negative blocks", edit(`"100"`, `"-1"`), `num_gpu_blocks is "-1"`},
		{"too many blocks", edit(`"100"`, `"99999999999"`), `num_gpu_blocks is "99999999999"`},
		{"engines that differ in block size", edit(`block_size="16",engine="1"`, `block_size="32",engine="1"`), "16 and 32"},
		{"unbalanced labels", edit(`engine="0"`, `engine="0`), "text format"},
		{"an endless line", small + strings.Repeat("x", 1<<20), "a line over"},
		{"too many samples", strings.Repeat(small, 500), "of samples"},
		{"an endless page", strings.Repeat(strings.Repeat("x", 99)+"\n", 50_000), "over 4194304 bytes"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := parse(tc.page)
			if !errors.Is(err, ErrUnreadable) || !strings.Contains(err.Error(), tc.fragment) {
				t.Errorf("error %v, want ErrUnreadable with %q", err, tc.fragment)
			}
			if got != (Report{}) {
				t.Errorf("report %+v along with an error", got)
			}
		})
	}
}

func TestParseMetricsKeepsToTheLimit(t *testing.T) {
	if _, err := ParseMetrics(strings.NewReader(small), int64(len(small))); err != nil {
		t.Errorf("a page as long as the limit: %v", err)
	}
	if _, err := ParseMetrics(strings.NewReader(small), int64(len(small))-1); !errors.Is(err, ErrUnreadable) {
		t.Errorf("a page one byte over the limit: error %v, want ErrUnreadable", err)
	}
	read := &counter{r: strings.NewReader(strings.Repeat(strings.Repeat("x", 99)+"\n", 100_000))}
	_, err := ParseMetrics(read, 1000)
	if err == nil || read.n > 1001 {
		t.Errorf("read %d bytes with a limit of 1000, error %v", read.n, err)
	}
}

type counter struct {
	r io.Reader
	n int
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += n
	return n, err
}

// A connection that breaks is no fault of the page.
func TestParseMetricsTellsReadErrorsApart(t *testing.T) {
	broken := errors.New("connection reset")
	_, err := ParseMetrics(io.MultiReader(strings.NewReader(small), iotest.ErrReader(broken)), MaxPageBytes)
	if !errors.Is(err, broken) || errors.Is(err, ErrUnreadable) {
		t.Errorf("error %v, want the reader's", err)
	}
	if got, err := ParseMetrics(iotest.OneByteReader(strings.NewReader(small)), MaxPageBytes); err != nil || got.Running != 7 {
		t.Errorf("byte by byte: %+v, %v", got, err)
	}
}

func FuzzParseMetrics(f *testing.F) {
	for _, name := range []string{"metrics-idle-fresh", "metrics-data-parallel-2"} {
		lines, err := readSamples(bytes.NewReader(readPage(f, name)), MaxPageBytes) // a whole page is slow to mutate
		if err != nil {
			f.Fatal(err)
		}
		f.Add(lines)
	}
	f.Add([]byte(small))
	f.Add([]byte("vllm:num_requests_running{engine=\"\\\xff\"} 1 # {} \n"))
	f.Add([]byte("{\"vllm:num_requests_running\"} 1\nvllm:num_requests_running{le=\"1\",quantile=\"x\"} 0x1p-3\n"))
	f.Fuzz(func(t *testing.T, page []byte) {
		got, err := ParseMetrics(bytes.NewReader(page), 256<<10)
		if err != nil {
			if got != (Report{}) {
				t.Fatalf("report %+v along with error %v", got, err)
			}
			return
		}
		if got.Running < 0 || got.Waiting < 0 || !(got.KVUsage >= 0 && got.KVUsage <= 1) || got.Engines < 1 ||
			got.PrefixCacheQueries < 0 || got.PrefixCacheHits < 0 || got.BlockSize < 0 || got.KVUsageName == "" ||
			got.UsableBlocks < 0 || got.UsableBlocks > got.NumGPUBlocks || !(got.ProcessStartTime >= 0) {
			t.Fatalf("senseless report %+v of %q", got, page)
		}
	})
}

func BenchmarkParseMetrics(b *testing.B) {
	page := readPage(b, "metrics-served")
	b.SetBytes(int64(len(page)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseMetrics(bytes.NewReader(page), MaxPageBytes); err != nil {
			b.Fatal(err)
		}
	}
}
