package lab

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/jackc/pgx/v5"

	"github.com/queengate/queengate/deploy/rel/hist"
)

// What gateways accept session tokens by.
const (
	sessionIssuer = "https://login.rel.test"
	sessionSecret = "the secret of sessions that live for minutes"
)

// Tenant is a tenant with one cluster, and a key that opens all of it.
type Tenant struct {
	Name    string
	ID      string // of the tenant
	Cluster string // id of its cluster
	Spaces  string // the namespace at the brokers
	Key     string
}

// NewTenant makes a tenant with a cluster on the lab's cell.
func (l *Lab) NewTenant(ctx context.Context, name string, limits *hist.Limits) (*Tenant, error) {
	t := &Tenant{Name: name}
	err := l.control(ctx, func(c *pgx.Conn) error {
		if err := c.QueryRow(ctx, "SELECT queengate.create_tenant($1)", name).Scan(&t.ID); err != nil {
			return err
		}
		if err := c.QueryRow(ctx, "SELECT queengate.create_cluster($1, $2, $3, $4)", t.ID, name, plan, cellName).Scan(&t.Cluster); err != nil {
			return err
		}
		return c.QueryRow(ctx, "SELECT broker_tenant_uuid::text FROM queengate.clusters WHERE id = $1", t.Cluster).Scan(&t.Spaces)
	})
	if err != nil {
		return nil, fmt.Errorf("make the tenant %s: %w", name, err)
	}
	if err := l.Limit(ctx, t, limits); err != nil {
		return nil, err
	}
	t.Key, _, err = l.IssueKey(ctx, t, "read", "produce", "consume", "admin")
	return t, err
}

// overrides are limits in the words of the control database.
func overrides(l *hist.Limits) map[string]any {
	m := map[string]any{
		"max_req_per_sec": nil, "req_burst": nil, "max_msgs_per_sec": nil, "msgs_burst": nil, "max_queues": nil,
		"max_partitions_per_queue": nil, "max_parked_pops": nil, "max_retained_bytes": nil, "monthly_msgs_quota": nil,
	}
	for name, v := range map[string]float64{
		"max_req_per_sec": l.RequestRate, "req_burst": l.RequestBurst, "max_msgs_per_sec": l.MessageRate, "msgs_burst": l.MessageBurst,
		"max_queues": float64(l.Queues), "max_partitions_per_queue": float64(l.Partitions), "max_parked_pops": float64(l.Parked),
		"max_retained_bytes": float64(l.RetainedBytes), "monthly_msgs_quota": float64(l.Monthly),
	} {
		if v != 0 {
			m[name] = v
		}
	}
	return m
}

// Limit edits the plan of a cluster, which gateways follow within two seconds.
func (l *Lab) Limit(ctx context.Context, t *Tenant, limits *hist.Limits) error {
	return l.Override(ctx, t, overrides(limits))
}

// Override edits the plan of a cluster in the words of the control database. What is not named follows the plan.
func (l *Lab) Override(ctx context.Context, t *Tenant, limits map[string]any) error {
	text, err := json.Marshal(limits)
	if err != nil {
		return err
	}
	return l.Do(ctx, "SELECT queengate.set_limit_override($1, $2)", t.Cluster, string(text))
}

// IssueKey makes a key of a cluster and returns it with its id.
func (l *Lab) IssueKey(ctx context.Context, t *Tenant, scopes ...string) (key, id string, err error) {
	var secret [32]byte
	_, _ = rand.Read(secret[:]) // it never fails
	key = "qk_rel_" + base64.RawURLEncoding.EncodeToString(secret[:])
	hash := sha256.Sum256([]byte(key))
	err = l.control(ctx, func(c *pgx.Conn) error {
		return c.QueryRow(ctx, "SELECT queengate.issue_api_key($1, $2, $3, NULL, $4)", t.Cluster, strings.Join(scopes, "-"), hash[:], scopes).Scan(&id)
	})
	if err != nil {
		return "", "", fmt.Errorf("issue a key of %s: %w", t.Name, err)
	}
	return key, id, nil
}

// NewUser makes a user with a role on a cluster and returns a session token of it. The session is called as the address.
func (l *Lab) NewUser(ctx context.Context, t *Tenant, email, role string) (token string, err error) {
	var id string
	err = l.control(ctx, func(c *pgx.Conn) error {
		if err := c.QueryRow(ctx, "SELECT queengate.create_user($1, $2)", t.ID, email).Scan(&id); err != nil {
			return err
		}
		_, err := c.Exec(ctx, "SELECT queengate.grant_cluster_role($1, $2, $3)", t.Cluster, email, role)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("make the user %s: %w", email, err)
	}
	now := time.Now()
	claims, err := json.Marshal(map[string]any{
		"iss": sessionIssuer, "sub": id, "jti": email, "iat": now.Add(-time.Minute).Unix(), "exp": now.Add(time.Hour).Unix(),
		"cluster": t.Cluster, "roles": []string{role},
	})
	if err != nil {
		return "", err
	}
	text := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"HS256","typ":"JWT"}`)) + "." + base64.RawURLEncoding.EncodeToString(claims)
	mac := hmac.New(sha256.New, []byte(sessionSecret))
	mac.Write([]byte(text))
	return text + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil)), nil
}

// Do runs a statement in the database of the system, past all links.
func (l *Lab) Do(ctx context.Context, sql string, args ...any) error {
	return l.control(ctx, func(c *pgx.Conn) error {
		if _, err := c.Exec(ctx, sql, args...); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
		return nil
	})
}

// session is one at a server, which may be another one by now.
type session struct {
	*pgx.Conn
	at *Postgres
}

// sessions is how many are kept for who needs one next: a new one costs a process.
const sessions = 4

// control uses a session at the database of the system. The session is as good as new: it was not in anybody's way when it
// was used last, and answers.
func (l *Lab) control(ctx context.Context, use func(*pgx.Conn) error) error {
	var s session
	for at := l.Current(); s.Conn == nil; {
		select {
		case s = <-l.idle:
			if s.at != at || s.Ping(ctx) != nil {
				_ = s.Close(context.WithoutCancel(ctx))
				s = session{}
			}
		default:
			c, err := at.Connect(ctx, database)
			if err != nil {
				return err
			}
			s = session{c, at}
		}
	}
	err := use(s.Conn)
	if err == nil && !s.IsClosed() {
		select {
		case l.idle <- s:
			return nil
		default: // there are enough
		}
	}
	_ = s.Close(context.WithoutCancel(ctx))
	return err
}
