package wl

import (
	"context"
	"fmt"
	"time"

	"github.com/queengate/queengate/deploy/rel/hist"
	"github.com/queengate/queengate/deploy/rel/lab"
)

// credential is one that will be revoked.
type credential struct {
	text   string
	revoke func(context.Context) error
}

// Revocations is G8: credentials are made, used on all gateways, revoked in every way that there is, and used again: a key,
// a session, all sessions of a user, a role, and a tenant that is suspended.
func Revocations() Workload {
	const cluster, suspended = "g8", "g8-suspended"
	w := Workload{Name: "G8", Clusters: []hist.Cluster{{Name: cluster, Workload: "G8"}, {Name: suspended, Workload: "G8"}}}
	how := map[string]func(context.Context, *lab.Lab, *lab.Tenant, string) (credential, error){
		"key": func(ctx context.Context, l *lab.Lab, t *lab.Tenant, _ string) (credential, error) {
			key, id, err := l.IssueKey(ctx, t, "read")
			return credential{key, func(ctx context.Context) error {
				return l.Do(ctx, "SELECT queengate.revoke_api_key($1, $2)", t.Cluster, id)
			}}, err
		},
		"session": func(ctx context.Context, l *lab.Lab, t *lab.Tenant, email string) (credential, error) {
			token, err := l.NewUser(ctx, t, email, "admin")
			return credential{token, func(ctx context.Context) error {
				return l.Do(ctx, "SELECT queengate.revoke_session($1, now() + interval '1 hour')", email)
			}}, err
		},
		"user": func(ctx context.Context, l *lab.Lab, t *lab.Tenant, email string) (credential, error) {
			token, err := l.NewUser(ctx, t, email, "admin")
			return credential{token, func(ctx context.Context) error {
				return l.Do(ctx, "SELECT queengate.revoke_user_tokens($1)", email)
			}}, err
		},
		"role": func(ctx context.Context, l *lab.Lab, t *lab.Tenant, email string) (credential, error) {
			token, err := l.NewUser(ctx, t, email, "admin")
			return credential{token, func(ctx context.Context) error {
				return l.Do(ctx, "SELECT queengate.revoke_cluster_role($1, $2)", t.Cluster, email)
			}}, err
		},
	}
	for _, kind := range []string{"key", "session", "user", "role"} {
		w.Threads = append(w.Threads, func(ctx context.Context, a *Actor) {
			t := a.stage.Tenants[cluster]
			for n := 0; a.stage.Loading() && ctx.Err() == nil; n++ {
				name := fmt.Sprintf("%s-%d", kind, n)
				c, err := how[kind](ctx, a.stage.Fleet, t, name+"@g8.example")
				if err != nil {
					a.remark("the credential %s could not be made: %v", name, err)
					return
				}
				a.lifeOf(ctx, t, name, kind, c)
			}
		})
	}
	w.Threads = append(w.Threads, func(ctx context.Context, a *Actor) {
		// Whoever is not revoked is let in all the time, whether gateways reach the control database or not.
		t := a.stage.Tenants[cluster]
		for n := 0; a.stage.Loading() && a.pause(ctx, 100*time.Millisecond); n++ {
			node := a.stage.Nodes[n%len(a.stage.Nodes)]
			node.Header = "Authorization: Bearer " + t.Key + "\r\n"
			a.ask(ctx, node, hist.AskArgs{Cluster: t.Name, Does: hist.DoesRead, Part: "steady"}, get(lists), 0)
		}
	})
	w.Threads = append(w.Threads, func(ctx context.Context, a *Actor) {
		t := a.stage.Tenants[suspended]
		if a.rest(ctx, 3*time.Second) {
			a.lifeOf(ctx, t, "tenant", "tenant", credential{t.Key, func(ctx context.Context) error {
				return a.stage.Fleet.Do(ctx, "SELECT queengate.set_tenant_status($1, 'suspended')", t.ID)
			}})
		}
	})
	return w
}

// lifeOf uses a credential on one gateway after the other, revokes it, and goes on using it, until the load ends.
func (a *Actor) lifeOf(ctx context.Context, t *lab.Tenant, name, kind string, c credential) {
	ctx, cancel := a.whileLoading(ctx)
	defer cancel()
	revoked, until := false, time.Now().Add(2*time.Second)
	for n := 0; ; n++ {
		node := a.stage.Nodes[n%len(a.stage.Nodes)]
		node.Header = "Authorization: Bearer " + c.text + "\r\n"
		a.ask(ctx, node, hist.AskArgs{Cluster: t.Name, Does: hist.DoesRead, Key: name}, get(lists), 0)
		switch over := time.Now().After(until); {
		case over && revoked:
			return
		case over:
			if err := c.revoke(ctx); err != nil {
				a.remark("%s could not be revoked: %v", name, err)
				return
			}
			a.rec.Note(hist.Cut, &hist.CutNote{Cluster: t.Name, Key: name, How: kind})
			revoked, until = true, time.Now().Add(6*time.Second)
		}
		if !a.rest(ctx, 70*time.Millisecond) {
			return
		}
	}
}
