package broker

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/broker/fuse"
	"github.com/queengate/queengate/broker/janitor"
	"github.com/queengate/queengate/broker/seal"
	"github.com/queengate/queengate/wire"
)

// DefaultTenant owns everything while tenancy is off.
var DefaultTenant = uuid.MustParse("00000000-0000-0000-0000-000000000001")

// Config holds the values a broker runs with; cmd reads them from files and the environment. Zero values take the
// defaults named.
type Config struct {
	Addr    string // listen address, ":6632"; not used when a listener is handed in
	Version string // shown by /health

	// Tenancy makes the broker take the tenant of a request from its signed token, and from nowhere else. Off, every
	// request belongs to DefaultTenant and no tenant header is read.
	Tenancy bool
	Cell    string                       // slug of the cell: the audience of tokens
	Keys    map[string]ed25519.PublicKey // by wire.KeyID; two during a rotation

	// JWT lets clients in that come without a gateway; nil takes no tokens of theirs. It excludes Tenancy: one broker
	// cannot believe both the gateways and everybody whom an issuer knows.
	JWT *JWT

	MaxBodyBytes     int           // 64 MiB; above it 413
	MaxParked        int           // 50,000 parked polls; above it 503 broker_overloaded
	WindowFull       int           // 100 messages in a partition end its queue's windowBuffer before its time
	PopTimeout       time.Duration // 30 s: the wait of a waiting pop that names none
	MaxPopMessages   int           // 10,000: a larger batch is answered with at most so many
	ReadTimeout      time.Duration // 60 s for head and body of one request
	WriteTimeout     time.Duration // 60 s for one answer
	IdleTimeout      time.Duration // 120 s between two requests
	DrainDelay       time.Duration // readiness is red for so long before the drain begins, for load balancers; 0
	DrainTimeout     time.Duration // 20 s for requests in flight
	drainArrival     time.Duration // 5 s of it for those that are still arriving
	ConfigureMode    wire.ConfigureMode
	Hostname         string        // names the process in the history of metrics; the machine's name
	HistoryKeep      time.Duration // how long minutes of metrics are kept; 90 days
	TraceKeep        time.Duration // how long trace events are kept; 90 days
	SubscriptionMode string        // of a group's first pop that names none: "new" (default) or "all"

	// Encryption has the keys of payloads at rest; nil: none. Without one that seals, pushes to encrypted queues are refused.
	Encryption *seal.Ring

	Autopilot          string // "on" (default), "shadow": choose and only count it, "off": of a pop that leaves batch and partitions to the broker
	AutopilotBatch     int    // 100: the batch chosen
	AutopilotDwellPops int    // 16 claims of a group are watched before more than one partition is chosen

	Fuse              fuse.Config
	Janitor           janitor.Config // its HistoryKeep is the one above
	redrivePause      time.Duration  // after the first step that the database undid, then doubled; 1 s
	SegmentCacheBytes int64          // 64 MiB of opened segments; negative: none is kept
	LeaseCacheBytes   int64          // 64 MiB of what was delivered under which lease; negative: nothing is
}

func (c Config) withDefaults() Config {
	set(&c.Addr, ":6632")
	set(&c.MaxBodyBytes, 64<<20)
	set(&c.MaxParked, 50_000)
	set(&c.MaxPopMessages, 10_000)
	set(&c.WindowFull, 100)
	set(&c.PopTimeout, wire.DefaultTimeout)
	set(&c.Autopilot, autopilotOn)
	set(&c.AutopilotBatch, 100)
	set(&c.AutopilotDwellPops, 16)
	set(&c.ReadTimeout, time.Minute)
	set(&c.WriteTimeout, time.Minute)
	set(&c.IdleTimeout, 2*time.Minute)
	set(&c.DrainTimeout, 20*time.Second)
	set(&c.drainArrival, 5*time.Second)
	set(&c.ConfigureMode, wire.ConfigureReplace)
	set(&c.SubscriptionMode, "new")
	set(&c.HistoryKeep, 90*24*time.Hour)
	set(&c.TraceKeep, 90*24*time.Hour)
	if c.Hostname == "" {
		// Without a name of its own the machine is called as it always is.
		c.Hostname = "localhost"
		if name, err := os.Hostname(); err == nil {
			c.Hostname = name
		}
	}
	set(&c.redrivePause, time.Second)
	set(&c.SegmentCacheBytes, 64<<20)
	set(&c.LeaseCacheBytes, 64<<20)
	return c
}

func set[T comparable](field *T, def T) {
	var zero T
	if *field == zero {
		*field = def
	}
}

// Validate reports every problem of the values, joined.
func (c Config) Validate() error {
	c = c.withDefaults()
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(!c.Tenancy || len(c.Keys) > 0, "broker.keys: tenancy needs at least one public key of the gateways")
	check(!c.Tenancy || c.JWT == nil, "broker.jwt and broker.tenancy exclude each other: behind gateways the gateway checks the clients' credentials; for clients of its own a broker needs tenancy off")
	check(!c.Tenancy || c.Cell != "", "broker.cell: tenancy needs the name of the cell")
	for id, k := range c.Keys {
		check(len(k) == ed25519.PublicKeySize, "broker.keys[%s]: %d bytes, want %d", id, len(k), ed25519.PublicKeySize)
	}
	if c.JWT != nil {
		errs = append(errs, c.JWT.validate())
	}
	check(c.MaxBodyBytes >= 1024, "broker.max_body_bytes = %d: want at least 1024", c.MaxBodyBytes)
	check(c.MaxParked >= 1, "broker.max_parked = %d: want at least 1", c.MaxParked)
	check(c.PopTimeout >= 0, "broker.pop_timeout = %v: want 0 or more", c.PopTimeout)
	check(c.Autopilot == autopilotOn || c.Autopilot == autopilotShadow || c.Autopilot == autopilotOff, "broker.autopilot = %q: want on, shadow or off", c.Autopilot)
	check(c.AutopilotBatch >= 1, "broker.autopilot_batch = %d: want at least 1", c.AutopilotBatch)
	check(c.AutopilotDwellPops >= 1, "broker.autopilot_dwell_pops = %d: want at least 1", c.AutopilotDwellPops)
	check(c.MaxPopMessages >= 1, "broker.max_pop_messages = %d: want at least 1", c.MaxPopMessages)
	check(c.WindowFull >= 1, "broker.window_batch = %d: want at least 1", c.WindowFull)
	check(c.SubscriptionMode == "new" || c.SubscriptionMode == "all", "broker.subscription_mode = %q: want new or all", c.SubscriptionMode)
	check(c.ConfigureMode == wire.ConfigureReplace || c.ConfigureMode == wire.ConfigureMerge, "broker.configure_mode = %q: want replace or merge", c.ConfigureMode)
	check(c.HistoryKeep >= 24*time.Hour, "broker.history_keep = %v: want at least a day", c.HistoryKeep)
	check(c.TraceKeep >= 24*time.Hour, "broker.trace_keep = %v: want at least a day", c.TraceKeep)
	check(c.DrainDelay >= 0, "broker.drain_delay = %v: want 0 or more", c.DrainDelay)
	return errors.Join(append(errs, c.Janitor.Validate())...)
}
