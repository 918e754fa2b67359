package proxy

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"math"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/queengate/queengate/wire"
)

// Config holds the values of the data path. The zero value of a field means its default; Validate fills nothing in.
type Config struct {
	// Domains are the suffixes under which the first label of a host names a cluster ("eu.example.com"). Empty: under
	// any suffix.
	Domains []string
	// SharedHosts are hosts that name no cluster: it comes from the credential. nil: localhost, 127.0.0.1 and ::1.
	SharedHosts []string

	MaxHeadBytes    int // request line and headers together; the read buffer of a connection. Default 8 KiB
	MaxHeaders      int // default 100
	MaxTargetBytes  int // path and query. Default 6 KiB
	MaxConns        int // default 50 000
	MaxAddressConns int // per address (IPv6: per /64), loopback exempt. Default 2 000, negative: no wall
	MaxClusterConns int // default 5 000, negative: no wall

	MaxBodyBytes     int64         // whatever the plan says. Default 16 MiB
	BodyBudgetBytes  int64         // of all buffered bodies together. Default: a quarter of the memory limit
	BodyTime         time.Duration // for any body, plus a second per MiB. Default 15 s
	BodyGrace        time.Duration // before the pace counts. Default 5 s
	BodyPace         int64         // bytes per second after the grace. Default 16 KiB
	HeadTime         time.Duration // for the handshake and a request's head. Default 10 s
	IdleTime         time.Duration // between requests. Default 120 s: longer than clients keep idle connections
	WriteTime        time.Duration // without progress of an answer. Default 30 s
	PopTimeout       time.Duration // wait of a waiting poll that names none. Default 30 s
	LongPollMax      time.Duration // cap of a poll's wait. Default 90 s
	LongPollGrace    time.Duration // how late a broker's answer to a poll may be. Default 3 s
	RefusalHold      time.Duration // before a refused waiting poll is answered. Default 1 s, negative: none
	MaxHeldRefusals  int           // beyond it refused polls are answered at once. Default 2 000
	UpstreamTime     time.Duration // of a broker's answer to anything but a waiting poll. Default 30 s
	ConnectTime      time.Duration // default 1 s
	ProbeInterval    time.Duration // default 1 s, a quarter of it while a broker is out
	SlowStart        time.Duration // in which a broker that came back gets its tenants again. Default 10 s, negative: at once
	UsageInterval    time.Duration // default 5 s
	MaxInFlight      int           // requests at brokers at a time, but for those that wait for messages. Default 1 024
	SlotWait         time.Duration // of a request for its turn when there are so many. Default 5 s
	MaxIdleUpstreams int           // idle connections kept per broker. Default 1 024
	DrainDelay       time.Duration // between a red readiness and the end of service, for load balancers. Default 0
	DrainTime        time.Duration // for requests under way when service ends. Default 25 s

	// CellKey signs what a gateway states to a broker. Required.
	CellKey ed25519.PrivateKey
	// Brokers overrides the broker addresses of a cell, by slug: http://host:port, dns+http://host:port for all
	// addresses of a name, or unix:/path for a socket of this machine.
	Brokers map[string][]string

	// pollPause lies between two attempts of one poll that both ended before its time.
	pollPause time.Duration
}

// Defaults that are part of the product's description.
const (
	defaultMaxBodyBytes = 16 << 20
	defaultLongPollMax  = 90 * time.Second
	// unlimitedBodyBudget is the budget of a process without a memory limit.
	unlimitedBodyBudget = 512 << 20
)

func orDefault[T int | int64 | time.Duration](v *T, d T) {
	if *v == 0 {
		*v = d
	}
}

// withDefaults returns c with every zero field replaced by its default.
func (c Config) withDefaults() Config {
	if c.SharedHosts == nil {
		c.SharedHosts = []string{"localhost", "127.0.0.1", "::1"}
	}
	orDefault(&c.MaxHeadBytes, 8<<10)
	orDefault(&c.MaxHeaders, 100)
	orDefault(&c.MaxTargetBytes, 6<<10)
	orDefault(&c.MaxConns, 50_000)
	orDefault(&c.MaxAddressConns, 2_000)
	orDefault(&c.MaxClusterConns, 5_000)
	orDefault(&c.MaxBodyBytes, defaultMaxBodyBytes)
	if c.BodyBudgetBytes == 0 {
		c.BodyBudgetBytes = unlimitedBodyBudget
		if limit := debug.SetMemoryLimit(-1); limit != math.MaxInt64 {
			c.BodyBudgetBytes = limit / 4
		}
		c.BodyBudgetBytes = max(c.BodyBudgetBytes, c.MaxBodyBytes)
	}
	orDefault(&c.BodyTime, 15*time.Second)
	orDefault(&c.BodyGrace, 5*time.Second)
	orDefault(&c.BodyPace, 16<<10)
	orDefault(&c.HeadTime, 10*time.Second)
	orDefault(&c.IdleTime, 120*time.Second)
	orDefault(&c.WriteTime, 30*time.Second)
	orDefault(&c.LongPollMax, defaultLongPollMax)
	orDefault(&c.PopTimeout, wire.DefaultTimeout)
	orDefault(&c.LongPollGrace, 3*time.Second)
	orDefault(&c.pollPause, 250*time.Millisecond)
	orDefault(&c.RefusalHold, time.Second)
	orDefault(&c.MaxHeldRefusals, 2_000)
	orDefault(&c.UpstreamTime, 30*time.Second)
	orDefault(&c.ConnectTime, time.Second)
	orDefault(&c.ProbeInterval, time.Second)
	orDefault(&c.SlowStart, 10*time.Second)
	orDefault(&c.UsageInterval, 5*time.Second)
	orDefault(&c.MaxInFlight, 1_024)
	orDefault(&c.SlotWait, 5*time.Second)
	orDefault(&c.MaxIdleUpstreams, 1_024)
	orDefault(&c.DrainTime, 25*time.Second)
	return c
}

// Validate reports all problems of c, joined, each with its key, value and bound.
func (c Config) Validate() error {
	c = c.withDefaults()
	var errs []error
	bound := func(ok bool, key string, value any, want string) {
		if !ok {
			errs = append(errs, fmt.Errorf("%s = %v: want %s", key, value, want))
		}
	}
	bound(len(c.CellKey) == ed25519.PrivateKeySize, "proxy.cell_key", "redacted", "an Ed25519 private key")
	bound(c.MaxHeadBytes >= 1<<10 && c.MaxHeadBytes <= 1<<20, "proxy.max_head_bytes", c.MaxHeadBytes, "1024..1048576")
	bound(c.MaxTargetBytes > 0 && c.MaxTargetBytes <= c.MaxHeadBytes, "proxy.max_target_bytes", c.MaxTargetBytes, "1..max_head_bytes")
	bound(c.MaxHeaders > 0, "proxy.max_headers", c.MaxHeaders, "at least 1")
	bound(c.MaxConns > 0, "proxy.max_conns", c.MaxConns, "at least 1")
	bound(c.MaxInFlight > 0, "proxy.max_in_flight", c.MaxInFlight, "at least 1")
	bound(c.MaxBodyBytes > 0 && c.MaxBodyBytes <= 1<<30, "proxy.max_body_bytes", c.MaxBodyBytes, "1..1073741824")
	bound(c.BodyBudgetBytes >= c.MaxBodyBytes, "proxy.body_budget_bytes", c.BodyBudgetBytes, "at least max_body_bytes")
	bound(c.BodyPace > 0, "proxy.body_pace", c.BodyPace, "at least 1")
	bound(c.LongPollMax <= 10*time.Minute, "proxy.long_poll_max", c.LongPollMax, "at most 10m")
	for key, d := range map[string]time.Duration{
		"proxy.body_time": c.BodyTime, "proxy.body_grace": c.BodyGrace, "proxy.head_time": c.HeadTime, "proxy.idle_time": c.IdleTime,
		"proxy.write_time": c.WriteTime, "proxy.long_poll_max": c.LongPollMax, "proxy.upstream_time": c.UpstreamTime,
		"proxy.connect_time": c.ConnectTime, "proxy.slot_wait": c.SlotWait, "proxy.probe_interval": c.ProbeInterval, "proxy.usage_interval": c.UsageInterval,
	} {
		bound(d > 0, key, d, "more than 0")
	}
	for cell, urls := range c.Brokers {
		if _, err := readEndpoints(strings.Join(urls, ",")); err != nil {
			errs = append(errs, fmt.Errorf("proxy.brokers.%s: %w", cell, err))
		}
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(errs...)
}
