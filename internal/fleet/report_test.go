package fleet

import (
	"testing"
	"time"
)

func TestRestarted(t *testing.T) {
	base := Report{PrefixCacheQueries: 100, PrefixCacheHits: 50, ProcessStartTime: 1.79e9, UsableBlocks: 511}
	for _, tc := range []struct {
		name   string
		change func(*Report)
		want   bool
	}{
		{"nothing changed", func(*Report) {}, false},
		{"counters went on", func(r *Report) { r.PrefixCacheQueries, r.PrefixCacheHits = 200, 60 }, false},
		{"queries went back", func(r *Report) { r.PrefixCacheQueries = 99 }, true},
		{"hits went back", func(r *Report) { r.PrefixCacheQueries, r.PrefixCacheHits = 200, 49 }, true},
		{"another start, counters already higher", func(r *Report) { r.PrefixCacheQueries, r.ProcessStartTime = 1000, 1.79e9+60 }, true},
		{"the start is no longer told", func(r *Report) { r.ProcessStartTime = 0 }, false},
		{"load and capacity alone", func(r *Report) { r.Running, r.UsableBlocks = 9, 40 }, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			next := base
			tc.change(&next)
			if got := Restarted(base, next); got != tc.want {
				t.Errorf("Restarted = %v, want %v", got, tc.want)
			}
		})
	}
}

func TestApplyReportTellsWhatChanged(t *testing.T) {
	first := Report{UsableBlocks: 511, BlockSize: 32, PrefixCacheQueries: 100, ProcessStartTime: 5}
	with := func(change func(*Report)) Report {
		r := first
		change(&r)
		return r
	}
	r := NewReplica("a")
	for _, step := range []struct {
		name string
		next Report
		want Change
	}{
		{"the engine has not settled its cache", with(func(r *Report) { r.UsableBlocks, r.BlockSize = 0, 0 }), Change{}},
		{"capacity learned", first, Change{CapacityChanged: true, UsableBlocks: 511, BlockSize: 32}},
		{"the same again", first, Change{UsableBlocks: 511, BlockSize: 32}},
		{"capacity no longer told", with(func(r *Report) { r.UsableBlocks = 0 }), Change{UsableBlocks: 511, BlockSize: 32}},
		{"told again", first, Change{UsableBlocks: 511, BlockSize: 32}},
		{"restarted with more blocks", with(func(r *Report) { r.UsableBlocks, r.ProcessStartTime = 1023, 6 }),
			Change{CapacityChanged: true, UsableBlocks: 1023, BlockSize: 32, Restarted: true}},
		{"restarted with other blocks", with(func(r *Report) { r.UsableBlocks, r.BlockSize, r.ProcessStartTime = 1023, 16, 7 }),
			Change{CapacityChanged: true, UsableBlocks: 1023, BlockSize: 16, Restarted: true}},
		{"restarted alike", with(func(r *Report) {
			r.UsableBlocks, r.BlockSize, r.ProcessStartTime, r.PrefixCacheQueries = 1023, 16, 7, 3
		}),
			Change{UsableBlocks: 1023, BlockSize: 16, Restarted: true}},
	} {
		if got := r.ApplyReport(0, step.next); got != step.want {
			t.Errorf("%s: %+v, want %+v", step.name, got, step.want)
		}
	}
}

// An engine that restarts is away for a while; what it said before counts when it is back.
func TestRestartIsSeenAcrossFailures(t *testing.T) {
	r := NewReplica("a")
	r.ApplyReport(0, Report{PrefixCacheQueries: 100})
	if !r.ApplyFailure() || r.ApplyFailure() {
		t.Error("want the first failure told from those that follow")
	}
	if got, want := r.ApplyReport(time.Second, Report{PrefixCacheQueries: 5}), (Change{Restarted: true, Recovered: true}); got != want {
		t.Errorf("change %+v, want %+v", got, want)
	}
	if !r.ApplyFailure() {
		t.Error("a failure after recovery is a first one")
	}
}

func TestReportAges(t *testing.T) {
	r := NewReplica("a")
	if _, _, ok := r.Report(time.Hour); ok {
		t.Error("a report before there was one")
	}
	r.ApplyFailure()
	if _, _, ok := r.Report(time.Hour); ok {
		t.Error("a failed scrape passes for a report")
	}
	r.ApplyReport(time.Second, Report{Running: 3})
	r.ApplyFailure()
	if rep, age, ok := r.Report(1250 * ms); !ok || age != 250*ms || rep.Running != 3 {
		t.Errorf("report %+v, age %v, %v; want the one from 250ms ago", rep, age, ok)
	}
	if _, age, _ := r.Report(0); age != 0 {
		t.Errorf("age %v for a caller with an earlier clock, want 0", age)
	}
}

func TestOvertakenReportIsLeftOut(t *testing.T) {
	r := NewReplica("a")
	r.ApplyReport(2*time.Second, Report{PrefixCacheQueries: 100, UsableBlocks: 7, BlockSize: 16})
	if got, want := r.ApplyReport(time.Second, Report{PrefixCacheQueries: 50}), (Change{UsableBlocks: 7, BlockSize: 16}); got != want {
		t.Errorf("change %+v, want %+v", got, want)
	}
	if rep, _, _ := r.Report(2 * time.Second); rep.PrefixCacheQueries != 100 {
		t.Errorf("kept %+v, want the later report", rep)
	}
}
