package fleet

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

const (
	// MaxPageBytes is the longest metrics page worth reading. A page of vLLM 0.32.0 has about 50 KiB for each engine.
	MaxPageBytes = 4 << 20

	maxLineBytes   = 16 << 10  // vLLM 0.32.0's longest is 1.4 KiB
	maxSampleBytes = 256 << 10 // of lines that are read closely: about 2 KiB for each engine
)

// ErrUnreadable is in the error of a page that cannot be taken for an engine's, because a family that every engine reports
// is missing or a value makes no sense. The error's text names the family.
var ErrUnreadable = errors.New("unreadable metrics page")

// The families that are read, each with the names it has had, newest first. All but the last are on every engine's page,
// and a page without one is unreadable. Names are those of vLLM 0.32.0, v1/metrics/loggers.py; the others are older
// versions' ones. A page can have both.
var families = [...]struct {
	names    []string
	optional bool
}{
	running:      {names: []string{"vllm:num_requests_running"}},
	waiting:      {names: []string{"vllm:num_requests_waiting"}},
	kvUsage:      {names: []string{"vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"}},
	queries:      {names: []string{"vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"}},
	hits:         {names: []string{"vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"}},
	cacheConfig:  {names: []string{"vllm:cache_config_info"}},
	processStart: {names: []string{"process_start_time_seconds"}, optional: true},
}

const (
	running = iota
	waiting
	kvUsage
	queries
	hits
	cacheConfig
	processStart
)

// ParseMetrics reads a vLLM metrics page in the Prometheus text format, of at most limit bytes (see [MaxPageBytes]).
//
// The error wraps [ErrUnreadable] unless reading itself failed. There is no partial report: an engine whose page is not
// understood must not pass for an idle one. Lines of other families are skipped unparsed, so that a page costs little more
// than reading it, ten times a second for each replica.
func ParseMetrics(r io.Reader, limit int64) (Report, error) {
	lines, err := readSamples(r, limit)
	if err != nil {
		return Report{}, err
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	parsed, err := parser.TextToMetricFamilies(bytes.NewReader(lines))
	if err != nil {
		return Report{}, fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	var page [len(families)]samples
	for f := range families {
		for _, name := range families[f].names {
			if metrics := parsed[name].GetMetric(); len(metrics) > 0 {
				page[f] = samples{name, metrics}
				break
			}
		}
		if page[f].name == "" && !families[f].optional {
			return Report{}, fmt.Errorf("%w: no %s", ErrUnreadable, families[f].names[0])
		}
	}
	return newReport(&page)
}

// readSamples gives the lines of the page that hold samples of the families.
func readSamples(r io.Reader, limit int64) ([]byte, error) {
	limited := &io.LimitedReader{R: r, N: limit + 1}
	in := bufio.NewReaderSize(limited, maxLineBytes)
	var lines []byte
	for {
		line, err := in.ReadSlice('\n')
		switch {
		case limited.N <= 0:
			return nil, fmt.Errorf("%w: over %d bytes", ErrUnreadable, limit)
		case errors.Is(err, io.EOF) && len(line) == 0:
			return lines, nil
		case errors.Is(err, io.EOF):
			return nil, fmt.Errorf("%w: ends within a line", ErrUnreadable)
		case errors.Is(err, bufio.ErrBufferFull):
			return nil, fmt.Errorf("%w: a line over %d bytes", ErrUnreadable, maxLineBytes)
		case err != nil:
			return nil, fmt.Errorf("reading metrics page: %w", err)
		}
		if !wanted(line) {
			continue
		}
		if len(lines)+len(line) > maxSampleBytes {
			return nil, fmt.Errorf("%w: over %d bytes of samples", ErrUnreadable, maxSampleBytes)
		}
		lines = append(lines, line...)
	}
}

// wanted reports whether a line is a sample of one of the families.
func wanted(line []byte) bool {
	line = bytes.TrimLeft(line, " \t")
	for f := range families {
		for _, name := range families[f].names {
			if n := len(name); len(line) > n && string(line[:n]) == name {
				if c := line[n]; c == '{' || c == ' ' || c == '\t' {
					return true
				}
			}
		}
	}
	return false
}

// samples are one family's, one per data-parallel engine.
type samples struct {
	name    string
	metrics []*dto.Metric
}

func newReport(page *[len(families)]samples) (Report, error) {
	rep := Report{
		Model:       label(page[running].metrics[0], "model_name"),
		Engines:     len(page[running].metrics),
		KVUsageName: page[kvUsage].name,
	}
	var sums [len(families)]float64
	for f := range page {
		var err error
		if sums[f], err = page[f].sum(); err != nil {
			return Report{}, err
		}
	}
	rep.Running, rep.Waiting = int(sums[running]), int(sums[waiting])
	rep.KVUsage = sums[kvUsage] / float64(len(page[kvUsage].metrics))
	if rep.KVUsage > 1 {
		return Report{}, fmt.Errorf("%w: %s is %v, over 1", ErrUnreadable, rep.KVUsageName, rep.KVUsage)
	}
	rep.PrefixCacheQueries, rep.PrefixCacheHits = int64(sums[queries]), int64(sums[hits])
	rep.ProcessStartTime = sums[processStart]
	if err := rep.readCacheConfig(page[cacheConfig]); err != nil {
		return Report{}, err
	}
	return rep, nil
}

// readCacheConfig reads the labels of the cache configuration. They are Python's str() of each setting; "None" is one
// that the engine has not settled.
func (rep *Report) readCacheConfig(s samples) error {
	for _, m := range s.metrics {
		size, err := count(s.name, "block_size", label(m, "block_size"))
		if err != nil {
			return err
		}
		blocks, err := count(s.name, "num_gpu_blocks", label(m, "num_gpu_blocks"))
		if err != nil {
			return err
		}
		if size > 0 && rep.BlockSize > 0 && size != rep.BlockSize {
			return fmt.Errorf("%w: %s: engines with block_size %d and %d", ErrUnreadable, s.name, rep.BlockSize, size)
		}
		rep.BlockSize = max(rep.BlockSize, size)
		rep.NumGPUBlocks += blocks
		rep.UsableBlocks += max(0, blocks-1)
	}
	return nil
}

// count reads a label that is a number of things; 0 if the engine does not say.
func count(family, name, value string) (int, error) {
	if value == "" || value == "None" {
		return 0, nil
	}
	n, err := strconv.ParseUint(value, 10, 31)
	if err != nil {
		return 0, fmt.Errorf("%w: %s: %s is %q", ErrUnreadable, family, name, value)
	}
	return int(n), nil
}

// sum adds the samples up. A count that float64 cannot hold exactly makes no sense.
func (s samples) sum() (float64, error) {
	total := 0.0
	for _, m := range s.metrics {
		v := m.GetUntyped().GetValue()
		if total += v; !(v >= 0) || total > 1<<53 {
			return 0, fmt.Errorf("%w: %s is %s", ErrUnreadable, s.name, strconv.FormatFloat(v, 'g', -1, 64))
		}
	}
	return total, nil
}

func label(m *dto.Metric, name string) string {
	i := slices.IndexFunc(m.GetLabel(), func(l *dto.LabelPair) bool { return l.GetName() == name })
	if i < 0 {
		return ""
	}
	return m.GetLabel()[i].GetValue()
}
