package caddymodule

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyevents"
	"go.uber.org/zap"

	"github.com/inferrail/inferrail/tokenize"
)

func init() { caddy.RegisterModule(new(App)) }

const (
	appID        = "inferrail"
	defaultFleet = "default"

	defaultTokenizerWorkers = 4
	defaultTokenizerQueue   = 256
	defaultTokenizerMaxWait = 50 * time.Millisecond
	defaultProbeInterval    = time.Second
	leastProbeInterval      = time.Millisecond
	defaultReloadDrain      = time.Second
	defaultMaxBufferedBytes = 1 << 30
)

// App holds what the `inferrail` handlers and proxies of a configuration share: the models, the tokenizer's workers, the
// probes of the engines and the drain at a reload.
type App struct {
	// The models that the fleet serves, in the order in which /v1/models lists them. At least one.
	Models []*Model `json:"models,omitempty"`

	// How requests are tokenized.
	Tokenizer *TokenizerPool `json:"tokenizer,omitempty"`

	// How often each engine is asked for its metrics and model cards, from which the router learns the size of its KV cache
	// and whether it has restarted. Default: 1s. At least 1ms.
	ProbeInterval caddy.Duration `json:"probe_interval,omitempty"`

	// The longest time for which a configuration that is being replaced goes on answering HTTP/1 clients, telling each to
	// reconnect, before its connections close. It ends as soon as the clients have gone. Each reload may take this much
	// longer. Default: 1s.
	ReloadDrain caddy.Duration `json:"reload_drain,omitempty"`

	// The most bytes of request bodies held at one time, of all requests together; a request beyond it is answered 503.
	// Default: 1 GiB.
	MaxBufferedBytes int64 `json:"max_buffered_bytes,omitempty"`

	ctx     caddy.Context
	logger  *zap.Logger
	metrics *metrics
	pool    *tokenize.Pool
	byName  map[string]*Model
	drain   drain

	mu         sync.Mutex
	selections []*Selection
	checked    map[*replica]bool
	watched    map[*replica]*Selection // by one whose proxy knows how to reach the engine
	started    bool
	probing    context.Context // ends with the app
	stop       context.CancelFunc
	probes     sync.WaitGroup
}

// TokenizerPool bounds the work of tokenizing.
type TokenizerPool struct {
	// Requests tokenized at the same time. Default: 4.
	Workers int `json:"workers,omitempty"`
	// Requests that may wait for a worker; more are routed without a prediction. Default: 256.
	Queue int `json:"queue,omitempty"`
	// The longest wait for the tokens of a request; after it, the request is routed without a prediction. Default: 50ms.
	MaxWait caddy.Duration `json:"max_wait,omitempty"`
}

// CaddyModule returns the Caddy module information.
func (*App) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: appID, New: func() caddy.Module { return new(App) }}
}

// inferrailApp returns the app of the configuration that ctx belongs to.
func inferrailApp(ctx caddy.Context) (*App, error) {
	mod, err := ctx.App(appID)
	if err != nil {
		return nil, fmt.Errorf("loading the inferrail app: %w", err)
	}
	return mod.(*App), nil
}

// Provision loads the tokenizers and prepares the metrics; it dials nothing.
func (a *App) Provision(ctx caddy.Context) error {
	a.ctx, a.logger = ctx, ctx.Logger()
	a.watched, a.checked = make(map[*replica]*Selection), make(map[*replica]bool)
	a.fillDefaults()
	a.metrics = acquireMetrics()
	if err := a.metrics.register(ctx.GetMetricsRegistry()); err != nil {
		return fmt.Errorf("registering metrics: %w", err)
	}
	a.byName = make(map[string]*Model)
	for i, m := range a.Models {
		if m == nil {
			return fmt.Errorf("models[%d]: must not be null", i)
		}
		if err := m.provision(ctx); err != nil {
			return fmt.Errorf("models[%d] %q: %w", i, m.Name, err)
		}
		for _, name := range append([]string{m.Name}, m.Aliases...) {
			if other, ok := a.byName[name]; ok {
				return fmt.Errorf("models[%d] %q: the name %q already belongs to model %q", i, m.Name, name, other.Name)
			}
			a.byName[name] = m
		}
	}
	a.pool = tokenize.NewPool(tokenize.PoolConfig{
		Workers: a.Tokenizer.Workers, Queue: a.Tokenizer.Queue, MaxWait: time.Duration(a.Tokenizer.MaxWait),
	})

	events, err := ctx.App("events")
	if err != nil {
		return fmt.Errorf("loading the events app: %w", err)
	}
	return events.(*caddyevents.App).On("stopping", a)
}

func (a *App) fillDefaults() {
	if a.Tokenizer == nil {
		a.Tokenizer = new(TokenizerPool)
	}
	if a.Tokenizer.Workers == 0 {
		a.Tokenizer.Workers = defaultTokenizerWorkers
	}
	if a.Tokenizer.Queue == 0 {
		a.Tokenizer.Queue = defaultTokenizerQueue
	}
	if a.Tokenizer.MaxWait == 0 {
		a.Tokenizer.MaxWait = caddy.Duration(defaultTokenizerMaxWait)
	}
	if a.ProbeInterval == 0 {
		a.ProbeInterval = caddy.Duration(defaultProbeInterval)
	}
	if a.MaxBufferedBytes == 0 {
		a.MaxBufferedBytes = defaultMaxBufferedBytes
	}
	if a.ReloadDrain == 0 {
		a.ReloadDrain = caddy.Duration(defaultReloadDrain)
	}
}

// Validate checks the settings and reports every fault with its path.
func (a *App) Validate() error {
	var faults []error
	if a.ProbeInterval >= 0 && time.Duration(a.ProbeInterval) < leastProbeInterval {
		faults = append(faults, fmt.Errorf("probe_interval: want at least %s, got %s", leastProbeInterval, time.Duration(a.ProbeInterval)))
	}
	for i, m := range a.Models {
		if err := m.validate(); err != nil {
			faults = append(faults, fmt.Errorf("models[%d] %q: %w", i, m.Name, err))
		}
	}
	for _, f := range []struct {
		name  string
		value int64
	}{
		{"tokenizer.workers", int64(a.Tokenizer.Workers)},
		{"tokenizer.queue", int64(a.Tokenizer.Queue)},
		{"tokenizer.max_wait", int64(a.Tokenizer.MaxWait)},
		{"probe_interval", int64(a.ProbeInterval)},
		{"reload_drain", int64(a.ReloadDrain)},
		{"max_buffered_bytes", a.MaxBufferedBytes},
	} {
		if f.value < 0 {
			faults = append(faults, fmt.Errorf("%s: must not be negative", f.name))
		}
	}
	return errors.Join(faults...)
}

// Start begins to probe the engines.
func (a *App) Start() error {
	a.adopt(a.findProxies())
	a.mu.Lock()
	a.probing, a.stop = context.WithCancel(context.Background())
	a.started = true
	for r := range a.watched {
		a.probeLocked(r)
	}
	a.mu.Unlock()
	a.setRunning(true)
	return nil
}

// Stop ends the probes. Requests under way go on.
func (a *App) Stop() error {
	a.setRunning(false)
	a.mu.Lock()
	a.started = false
	if a.stop != nil {
		a.stop()
	}
	a.mu.Unlock()
	a.probes.Wait()
	return nil
}

// Cleanup lets go of what Provision took. The tokenizer pool stays open: it has no goroutines, and requests that outlive
// the configuration still use it.
func (a *App) Cleanup() error {
	if a.metrics != nil {
		releaseMetrics()
	}
	return nil
}

// Handle drains the configuration when it is about to stop. It is called synchronously, before any app stops.
func (a *App) Handle(context.Context, caddy.Event) error {
	a.handOverListeners()
	a.drain.run(time.Duration(a.ReloadDrain))
	return nil
}

func (a *App) addSelection(s *Selection) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.selections = append(a.selections, s)
}

// model resolves the name in a request; an empty name is the only model there is.
func (a *App) model(name string) (*Model, bool) {
	if name == "" && len(a.Models) == 1 {
		return a.Models[0], true
	}
	m, ok := a.byName[name]
	return m, ok
}

// Interface guards
var (
	_ caddy.App           = (*App)(nil)
	_ caddy.Provisioner   = (*App)(nil)
	_ caddy.Validator     = (*App)(nil)
	_ caddy.CleanerUpper  = (*App)(nil)
	_ caddyevents.Handler = (*App)(nil)
)
