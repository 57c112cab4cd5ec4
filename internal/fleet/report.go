package fleet

import "time"

// Report is what one engine's metrics page says, its data-parallel engines taken together.
type Report struct {
	// Model is the first served model name.
	Model string
	// Engines counts the data-parallel engines on the page.
	Engines int
	// Running and Waiting count the engine's requests, summed over the engines.
	Running, Waiting int
	// KVUsage is the part of the KV cache that running requests hold, 0 to 1, the engines' mean. Cached blocks that no
	// request holds do not count.
	KVUsage float64
	// KVUsageName is the metric that KVUsage was read from; its name differs between engine versions.
	KVUsageName string
	// PrefixCacheQueries and PrefixCacheHits count prompt tokens looked up and found in the prefix cache since the engine
	// started, summed over the engines.
	PrefixCacheQueries, PrefixCacheHits int64
	// BlockSize is the number of tokens in a KV block; 0 if the page does not say.
	BlockSize int
	// NumGPUBlocks is the number of KV blocks, summed over the engines; 0 if the page does not say.
	NumGPUBlocks int
	// UsableBlocks is NumGPUBlocks less the null block that each engine keeps for itself
	// (vLLM 0.32.0, v1/core/block_pool.py, BlockPool.__init__).
	UsableBlocks int
	// ProcessStartTime is in seconds since the Unix epoch; 0 if the page does not say, as with several API servers.
	ProcessStartTime float64
}

// Restarted reports whether the engine that gave next cannot be the process that gave prev, so that its cache is empty:
// its prefix cache counters ran backwards, or it started at another time.
func Restarted(prev, next Report) bool {
	return next.PrefixCacheQueries < prev.PrefixCacheQueries ||
		next.PrefixCacheHits < prev.PrefixCacheHits ||
		(prev.ProcessStartTime != 0 && next.ProcessStartTime != 0 && prev.ProcessStartTime != next.ProcessStartTime)
}

// Change is what a report says that the one before it did not.
type Change struct {
	// CapacityChanged tells that UsableBlocks or BlockSize was learned or differs from what was known.
	CapacityChanged bool
	// UsableBlocks and BlockSize are the last that the engine told, changed or not; 0 while unknown.
	UsableBlocks, BlockSize int
	// Restarted tells that the engine is another process than the one before, with an empty cache.
	Restarted bool
	// Recovered tells that the report before this one had failed.
	Recovered bool
}

// reportState is what a replica remembers of its reports.
type reportState struct {
	last      Report
	at        time.Duration
	known     bool // last holds a report
	failing   bool
	usable    int
	blockSize int
}

// ApplyReport takes in a report that was received at now and tells what it changed. A report that was overtaken by a
// later one is left out, since it would look like a restart.
func (r *Replica) ApplyReport(now time.Duration, next Report) Change {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &r.report
	if s.known && now < s.at {
		return Change{UsableBlocks: s.usable, BlockSize: s.blockSize}
	}
	change := Change{Recovered: s.failing, Restarted: s.known && Restarted(s.last, next)}
	if next.UsableBlocks > 0 && next.UsableBlocks != s.usable {
		s.usable, change.CapacityChanged = next.UsableBlocks, true
	}
	if next.BlockSize > 0 && next.BlockSize != s.blockSize {
		s.blockSize, change.CapacityChanged = next.BlockSize, true
	}
	change.UsableBlocks, change.BlockSize = s.usable, s.blockSize
	s.last, s.at, s.known, s.failing = next, now, true, false
	return change
}

// ApplyFailure takes in that the engine could not be asked or its page not be read. It reports whether this is the first
// failure since the last report, the one worth a log line. The last report stays, growing older: a failed scrape
// tells nothing about the engine's load.
func (r *Replica) ApplyFailure() (first bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	first = !r.report.failing
	r.report.failing = true
	return first
}

// Report gives the engine's last report and how old it is at now; ok is false while there is none. A caller that routes on
// it takes one that is too old as none, never as an idle engine.
func (r *Replica) Report(now time.Duration) (report Report, age time.Duration, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.report.known {
		return Report{}, 0, false
	}
	return r.report.last, max(0, now-r.report.at), true
}
