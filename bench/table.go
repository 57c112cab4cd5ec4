package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// renderTable writes rows under a header, the first column to the left and the others to the right, two spaces apart.
func renderTable(w io.Writer, rows [][]string) {
	var widths []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for _, row := range rows {
		var b strings.Builder
		for i, cell := range row {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if i == 0 {
				b.WriteString(cell + pad)
			} else {
				b.WriteString("  " + pad + cell)
			}
		}
		fmt.Fprintln(w, strings.TrimRight(b.String(), " "))
	}
}

var tableHeader = []string{
	"policy", "requests", "errors", "dropped", "hit rate", "TTFT p50", "p99 ms", "per replica",
	"exact", "over", "under", "none", "send lag ms",
}

// tableRow is a run's line of the report.
func (s *summary) tableRow() []string {
	counts := make([]string, len(s.PerReplica))
	for i, n := range s.PerReplica {
		counts[i] = strconv.Itoa(n)
	}
	n := s.answered()
	return []string{
		s.Policy, strconv.Itoa(s.Requests), strconv.Itoa(s.Errors), strconv.Itoa(s.Dropped),
		percent(s.HitRate), millis(s.TTFTp50, 0), millis(s.TTFTp99, 0), strings.Join(counts, "/"),
		share(s.Exact, n), share(s.Over, n), share(s.Under, n), share(s.None, n),
		millis(s.SendLag, 2),
	}
}

// percent renders a fraction as a percentage.
func percent(f float64) string {
	return strconv.FormatFloat(100*f, 'f', 1, 64) + "%"
}

// share renders n of total, or a dash for none of none. Only all of them is 100.0%: a share that would be rounded up to it shows as 99.9%.
func share(n, total int) string {
	if total == 0 {
		return "-"
	}
	f := float64(n) / float64(total)
	if n < total {
		f = min(f, 0.999)
	}
	return percent(f)
}

func millis(d time.Duration, decimals int) string {
	return strconv.FormatFloat(float64(d)/float64(time.Millisecond), 'f', decimals, 64)
}

// lateSend is the send lag from which a run's times say more about the machine than about the policy. On an idle machine
// with two cores the largest lag of a run is about 20 ms, when a burst of the trace arrives.
const lateSend = 100 * time.Millisecond

// report writes the runs of one workload.
func report(out io.Writer, w *workload, runs []*summary) {
	fmt.Fprintf(out, "%s: %s.\n", w.Name, w.About)
	fmt.Fprintf(out, "%d engines, %d KV blocks of %d tokens and a context of %d each; a fresh process, with cold caches, per policy.\n\n",
		replicas, w.Engine.Blocks, blockSize, w.Engine.MaxModelLen)
	rows := [][]string{tableHeader}
	for _, s := range runs {
		rows = append(rows, s.tableRow())
	}
	renderTable(out, rows)
	for _, s := range runs {
		if s.Skipped > 0 {
			fmt.Fprintf(out, "%s: %d later turns of failed chats were not sent.\n", s.Policy, s.Skipped)
		}
		if s.LengthOff > 0 {
			fmt.Fprintf(out, "%s: the router and the engine counted %d prompts differently.\n", s.Policy, s.LengthOff)
		}
		if s.MaxSendLag > lateSend {
			fmt.Fprintf(out, "%s: a request went out %s ms late. This machine was busy with something else: do not compare times.\n",
				s.Policy, millis(s.MaxSendLag, 0))
		}
	}
	fmt.Fprintln(out)
}

// legend explains the columns.
const legend = `hit rate: prompt tokens that the engines found in their caches, of those that they looked up (their own counters).
TTFT: from a request's scheduled time to its first chunk with content; nearest-rank percentiles of the answered requests.
exact, over, under, none: answered requests whose predicted cached tokens equal, exceed or fall short of the engine's
count, or that had no prediction. send lag: mean time from a request's schedule to the end of its sending.
`
