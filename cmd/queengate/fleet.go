package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/queengate/queengate/internal/conf"
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
	conf.Int(s, &c.Quota.Fleet, "fleet_size", "Gateways to count on, at least, while Redis is away and before they have heard of each other: each decides with so small a part of every plan.", 1, 1000, conf.Env("QUEENGATE_FLEET_SIZE"))
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

// fleetHealth shows how limits are decided. That Redis is away fails nothing.
func fleetHealth(gate *quota.Gate) obs.Health {
	return func(context.Context) (string, error) { return gate.Standing(), nil }
}

// unsaid is the log of the Redis client.
type unsaid struct{}

func (unsaid) Printf(context.Context, string, ...any) {}
