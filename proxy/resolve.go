package proxy

import (
	"bytes"
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/proxy/auth"
	"github.com/queengate/queengate/wire"
)

// place is where a request wants to go by its head, before anybody believes it.
type place struct {
	shared  bool           // the host names no cluster: the credential does
	cluster *plans.Cluster // of a host of its own; on a shared host the one named to act on; nil: none that exists
}

// locate reads the place of a request. What it finds is told to nobody before the credential is good.
func (g *Gateway) locate(ex *exchange, snap *plans.Snapshot) place {
	var room [256]byte
	host, ok := appendHost(room[:0], ex.head.host)
	switch {
	case !ok:
		return place{}
	case !g.isShared(host):
		return place{cluster: g.clusterOfHost(host, snap)}
	case ex.head.hasAct:
		return place{shared: true, cluster: clusterRef(ex.head.act, snap)}
	}
	return place{shared: true}
}

// Bounds of the wait for a key that the gateway does not know: whoever made it may have heard of that sooner.
const (
	newKeyTime = 250 * time.Millisecond
	maxNewKeys = 256 // beyond it unknown keys are refused at once
)

// recognise authenticates by the current snapshot and returns that by which the credential was judged. A key that is
// not in it is looked for in the control database before it is refused.
func (g *Gateway) recognise(c *clientConn, ex *exchange) (*plans.Snapshot, *wire.Error) {
	snap := g.book.Snapshot()
	e := g.authenticate(c, ex, snap, false)
	if !auth.KeyUnknown(e) || !g.catchUp(ex.start) {
		return snap, e
	}
	snap = g.book.Snapshot()
	return snap, g.authenticate(c, ex, snap, false)
}

// catchUp waits until the snapshot is one of the instant at or later, and reports whether it is.
func (g *Gateway) catchUp(at time.Time) bool {
	defer g.newKeys.Add(-1)
	if g.newKeys.Add(1) > maxNewKeys {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), newKeyTime)
	defer cancel()
	return g.book.CatchUp(ctx, at)
}

// authenticate turns the credential into the exchange's principal. Every failure is the verifier's. Tokens of issuers
// count at the place of their tenant alone, and a place that does not exist is nobody's: no refusal tells the two apart.
// prompt: it must not wait.
func (g *Gateway) authenticate(c *clientConn, ex *exchange, snap *plans.Snapshot, prompt bool) *wire.Error {
	ex.place = g.locate(ex, snap)
	r := auth.Request{Authorization: ex.head.authorization, Remote: c.addr, Now: ex.start, Prompt: prompt}
	if at := ex.place.cluster; at != nil {
		r.Tenant = at.TenantID
	}
	p, err := g.verifier.Verify(snap, r)
	if err != nil {
		return wire.AsError(err)
	}
	ex.principal, ex.subject = p, p.Subject()
	return nil
}

// resolve finds the cluster a live credential may act on here. A host of its own names it, and the credential must
// agree; on a shared host the credential does: a key is bound to one cluster for life, a token states it or names it
// with X-Queen-Act-Cluster. What a token names in vain is answered like what it has no role on.
func (g *Gateway) resolve(ex *exchange, snap *plans.Snapshot) (*plans.Cluster, *wire.Error) {
	p := &ex.principal
	if p.Key != nil && ex.head.hasAct {
		return nil, wire.Errorf(wire.Forbidden, "a key acts on its own cluster only")
	}
	if ex.place.shared {
		return g.named(ex, snap)
	}
	own := ex.place.cluster
	if own == nil {
		return nil, &wire.Error{Code: wire.ClusterUnknown}
	}
	switch {
	case p.Key != nil && p.Key.Cluster.ID != own.ID:
		return nil, wire.Errorf(wire.Forbidden, "the key belongs to another cluster")
	case p.Key == nil && p.Cluster != uuid.Nil && p.Cluster != own.ID:
		return nil, wire.Errorf(wire.Forbidden, "the token is not valid for this cluster")
	case ex.head.hasAct:
		if act := clusterRef(ex.head.act, snap); act == nil || act.ID != own.ID {
			return nil, &wire.Error{Code: wire.Forbidden}
		}
	}
	return own, nil
}

// named returns the cluster the credential itself names.
func (g *Gateway) named(ex *exchange, snap *plans.Snapshot) (*plans.Cluster, *wire.Error) {
	p := &ex.principal
	if p.Key != nil {
		return p.Key.Cluster, nil
	}
	claimed := snap.ClusterByID(p.Cluster)
	if !ex.head.hasAct {
		if p.Cluster == uuid.Nil {
			return nil, wire.Errorf(wire.Forbidden, "name the cluster to act on with %s", wire.HeaderActCluster)
		}
		if claimed == nil {
			return nil, &wire.Error{Code: wire.Forbidden}
		}
		return claimed, nil
	}
	act := ex.place.cluster
	if act == nil {
		return nil, &wire.Error{Code: wire.Forbidden}
	}
	if p.Cluster != uuid.Nil && p.Cluster != act.ID {
		return nil, wire.Errorf(wire.Forbidden, "the token is not valid for this cluster")
	}
	return act, nil
}

func (g *Gateway) isShared(host []byte) bool {
	_, shared := g.sharedHosts[string(host)]
	return shared
}

// clusterOfHost takes the first label of a canonical host for a slug, under the configured domains if there are any.
func (g *Gateway) clusterOfHost(host []byte, snap *plans.Snapshot) *plans.Cluster {
	label, rest, _ := bytes.Cut(host, []byte{'.'})
	if len(g.domains) > 0 {
		if _, ours := g.domains[string(rest)]; !ours {
			return nil
		}
	}
	return snap.ClusterBySlug(string(label))
}

// clusterRef reads a slug or an id.
func clusterRef(ref []byte, snap *plans.Snapshot) *plans.Cluster {
	if len(ref) == len(uuid.Nil.String()) {
		if id, err := uuid.ParseBytes(ref); err == nil {
			return snap.ClusterByID(id)
		}
	}
	return snap.ClusterBySlug(string(bytes.ToLower(ref)))
}
