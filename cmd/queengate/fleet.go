package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/queengate/queengate/internal/conf"
	"github.com/queengate/queengate/internal/datadir"
	"github.com/queengate/queengate/internal/obs"
	"github.com/queengate/queengate/quota"
)

// Values of quota.mode.
const (
	modeAuto   = "auto"
	modeLocal  = "local"
	modeExact  = "exact"
	modeLeased = "leased"
)

// maxFleet bounds how many gateways are counted on.
const maxFleet = 1000

// quotaConfig says where limits are kept.
type quotaConfig struct {
	Mode   string
	Budget time.Duration
	Fleet  int
}

func (c *config) declareQuota(s *conf.Set) {
	s.Section("redis", "Redis: the limits of a fleet of gateways. One gateway alone keeps them exactly, in memory, without it.", "up", "gateway")
	s.Secret(&c.Redis, "url", "Address, redis://[user:password@]host:port/db, rediss:// for TLS, or unix:///path. Requests are served without it too, see docs/design/fleet-limits.md; /healthz says how it is.", conf.Flag("redis"))
	s.Duration(&c.Quota.Budget, "budget", "How long a request may wait for Redis. The first that waits in vain is the last: until Redis answers again each gateway decides with its part of every plan.", time.Millisecond, time.Second)
	s.Check(func() error {
		if c.Redis == "" {
			return nil
		}
		if _, err := redis.ParseURL(c.Redis.Reveal()); err != nil {
			return errors.New("redis.url = redacted: want redis://host:port, rediss:// or unix://")
		}
		return nil
	})

	s.Section("quota", "Limits.", "up", "gateway")
	s.Enum(&c.Quota.Mode, "mode", "Who decides: this gateway's memory, Redis for every request, or this gateway with tokens that it leases from Redis. auto is leased with an address of Redis and local without.",
		[]string{modeAuto, modeLocal, modeExact, modeLeased})
	conf.Int(s, &c.Quota.Fleet, "fleet_size", "Gateways to count on, at least, while Redis is away and before they have heard of each other: each decides with so small a part of every plan.", 1, maxFleet, conf.Env("QUEENGATE_FLEET_SIZE"))
	s.Check(func() error {
		if (c.Quota.Mode == modeExact || c.Quota.Mode == modeLeased) && c.Redis == "" {
			return fmt.Errorf("quota.mode = %s: needs redis.url", c.Quota.Mode)
		}
		return nil
	})
}

// fleet returns how the gateway shares its limits; nil when it does not.
func (c *config) fleet() (*quota.FleetOptions, error) {
	if c.Redis == "" || c.Quota.Mode == modeLocal {
		return nil, nil
	}
	o, err := redis.ParseURL(c.Redis.Reveal())
	if err != nil {
		return nil, errors.New("redis.url cannot be parsed") // the parser's error quotes the address
	}
	redis.SetLogger(unsaid{}) // the gate says what there is to say, and nothing may bypass the log
	return &quota.FleetOptions{
		Redis: o, Leases: c.Quota.Mode != modeExact, Budget: c.Quota.Budget, Size: c.Quota.Fleet,
	}, nil
}

// fleetFile is where a gateway keeps, in its data folder, how many gateways it has heard of.
const fleetFile = "fleet.size"

// rememberFleet makes the number of gateways outlive this process: one that starts while Redis is away counts on those
// of its last life. What the file says is bounded like the setting; a file that says something else is not believed.
func rememberFleet(o *quota.FleetOptions, dir *datadir.Dir, log *slog.Logger) {
	text, err := os.ReadFile(dir.Path(fleetFile))
	if err == nil {
		var n int
		if n, err = strconv.Atoi(strings.TrimSpace(string(text))); err == nil && (n < 1 || n > maxFleet) {
			err = fmt.Errorf("%d gateways: want 1..%d", n, maxFleet)
		}
		if err == nil {
			o.Known = n
		}
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Warn("the remembered number of gateways is not believed", "file", dir.Path(fleetFile), "err", err)
	}
	o.Remember = func(gateways int) error {
		return dir.WriteFile(fleetFile, []byte(strconv.Itoa(min(gateways, maxFleet))+"\n"))
	}
}

// fleetHealth shows how limits are decided. That Redis is away fails nothing.
func fleetHealth(gate *quota.Gate) obs.Health {
	return func(context.Context) (string, error) { return gate.Standing(), nil }
}

// unsaid is the log of the Redis client.
type unsaid struct{}

func (unsaid) Printf(context.Context, string, ...any) {}
