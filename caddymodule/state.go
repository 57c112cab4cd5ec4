package caddymodule

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/inferrail/inferrail/index"
	"github.com/inferrail/inferrail/internal/fleet"
	"github.com/inferrail/inferrail/policies"
)

// All mutable package state is in this file. The pools keep what must outlive a configuration; each user of a value
// holds one reference: modules from Provision to Cleanup, requests from their first selection to their end.
//
// Lock order: fleetState.mu → the index's and the replicas' own locks. Nothing takes fleetState.mu while it holds another.
var (
	// fleetPool holds *fleetState by fleet name.
	fleetPool = caddy.NewUsagePool()
	// replicaPool holds *replica by replicaKey.
	replicaPool = caddy.NewUsagePool()
	// policyPool holds *policyState by fleet, model and policy settings.
	policyPool = caddy.NewUsagePool()
	// tokenizerPool holds loadedTokenizer by the files it was read from; a changed file has another key.
	tokenizerPool = caddy.NewUsagePool()
	// metricsPool holds the one *metrics, so that counters keep their values over reloads.
	metricsPool = caddy.NewUsagePool()

	// runningApps are the apps that have started and not stopped, the newest last: during a reload there are two, of which
	// the older one stays if the newer configuration fails to start. Admin routes, which are made before apps, look here.
	runningApps struct {
		mu   sync.Mutex
		apps []*App
	}

	// origin is the start of the timeline that the Caddy-free packages are given.
	origin = time.Now()
)

// runningApp is the app of the newest configuration; nil without one.
func runningApp() *App {
	runningApps.mu.Lock()
	defer runningApps.mu.Unlock()
	if n := len(runningApps.apps); n > 0 {
		return runningApps.apps[n-1]
	}
	return nil
}

// setRunning notes that an app has started or stopped.
func (a *App) setRunning(running bool) {
	runningApps.mu.Lock()
	defer runningApps.mu.Unlock()
	runningApps.apps = slices.DeleteFunc(runningApps.apps, func(other *App) bool { return other == a })
	if running {
		runningApps.apps = append(runningApps.apps, a)
	}
}

// now is the time on the timeline shared by fleets, policies and the index.
func now() time.Duration { return time.Since(origin) }

// fleetState is a named set of replicas: one index and one lock under which decisions are made.
type fleetState struct {
	name  string
	index *index.Index

	// mu makes deciding, taking the lease and telling the index one step, so that simultaneous requests see each other.
	mu sync.Mutex
}

// acquireFleet returns the fleet of that name, making it if need be, and takes a reference.
func acquireFleet(name string) (*fleetState, error) {
	v, _, err := fleetPool.LoadOrNew(name, func() (caddy.Destructor, error) {
		return &fleetState{name: name, index: index.New(index.Config{})}, nil
	})
	if err != nil {
		return nil, fmt.Errorf("making fleet %q: %w", name, err)
	}
	return v.(*fleetState), nil
}

func releaseFleet(f *fleetState) { _, _ = fleetPool.Delete(f.name) }

// Destruct is called when the last configuration and the last request have let go of the fleet.
func (f *fleetState) Destruct() error { return nil }

// replicaKey names a replica: the same address in two fleets is two replicas.
type replicaKey struct{ fleet, address string }

// replica is an engine endpoint: its counters, its row in the index and what its probes said.
type replica struct {
	key      replicaKey
	counters *fleet.Replica
	fleet    *fleetState
	metrics  *metrics

	mu        sync.Mutex
	row       *index.Replica
	blockSize int
	sized     int // the capacity that row was told
	capacity  capacity
	cards     []fleet.Card
}

// capacity of a replica's KV cache in blocks, from the best source there is.
type capacity struct {
	configured, reported, fallback int
}

func (c capacity) blocks() int {
	switch {
	case c.configured > 0:
		return c.configured
	case c.reported > 0:
		return c.reported
	}
	return c.fallback
}

// acquireReplica returns the replica at address, making it if need be, and takes a reference.
func acquireReplica(f *fleetState, address string, m *metrics) *replica {
	key := replicaKey{f.name, address}
	v, _, _ := replicaPool.LoadOrNew(key, func() (caddy.Destructor, error) { // the constructor cannot fail
		if _, err := acquireFleet(f.name); err != nil {
			return nil, err
		}
		r := &replica{key: key, counters: fleet.NewReplica(address), fleet: f, metrics: m}
		m.addReplica(r)
		return r, nil
	})
	return v.(*replica)
}

func (r *replica) release() { _, _ = replicaPool.Delete(r.key) }

// Destruct forgets what the index and the metrics know of the replica.
func (r *replica) Destruct() error {
	r.mu.Lock()
	if r.row != nil {
		r.fleet.index.RemoveReplica(r.row)
	}
	r.mu.Unlock()
	r.metrics.removeReplica(r)
	releaseFleet(r.fleet)
	return nil
}

// indexRow returns the replica's row in the index for a model's block size and capacity. Another block size means another
// engine configuration, so the old row is dropped.
func (r *replica) indexRow(m *Model) *index.Replica {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.capacity.configured, r.capacity.fallback = m.KVCapacityBlocks, m.DefaultCapacityBlocks
	if r.row != nil && r.blockSize != m.BlockSize {
		r.fleet.index.RemoveReplica(r.row)
		r.row = nil
	}
	if r.row == nil {
		r.sized, r.blockSize = r.capacity.blocks(), m.BlockSize
		r.row = r.fleet.index.AddReplica(r.key.address, r.blockSize, r.sized)
	}
	r.resizeLocked()
	return r.row
}

// resizeLocked tells the row, if there is one, what the replica's capacity has become.
func (r *replica) resizeLocked() {
	if blocks := r.capacity.blocks(); r.row != nil && r.sized != blocks {
		r.row.SetCapacity(blocks)
		r.sized = blocks
	}
}

// policyKey names the state of a policy: unchanged settings keep their state over a reload.
type policyKey struct{ fleet, model, settings string }

type policyState struct {
	key    policyKey
	policy policies.Policy
	cost   *policies.CostModel // prices the prefill queue, whatever the policy
}

func acquirePolicy(key policyKey, build func() (*policyState, error)) (*policyState, error) {
	v, _, err := policyPool.LoadOrNew(key, func() (caddy.Destructor, error) {
		s, err := build()
		if err != nil {
			return nil, err
		}
		s.key = key
		return s, nil
	})
	if err != nil {
		return nil, err
	}
	return v.(*policyState), nil
}

func (p *policyState) release() { _, _ = policyPool.Delete(p.key) }

// Destruct is called when the last configuration with these settings is gone.
func (p *policyState) Destruct() error { return nil }

// models are the names that the engine says it serves.
func (r *replica) models() (names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.cards {
		names = append(names, c.ID)
	}
	return names
}

// serves tells whether the engine lists the model; one that has not said what it serves may.
func (r *replica) serves(m *Model) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.cards) == 0 || slices.ContainsFunc(r.cards, func(c fleet.Card) bool { return c.ID == m.Name })
}

// indexStats describes the replica's row; ok is false while it has none.
func (r *replica) indexStats() (stats index.ReplicaStats, ok bool) {
	r.mu.Lock()
	row := r.row
	r.mu.Unlock()
	if row == nil {
		return stats, false
	}
	return row.Stats(), true
}
