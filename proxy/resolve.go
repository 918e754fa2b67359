package proxy

import (
	"bytes"

	"github.com/google/uuid"

	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/wire"
)

// authenticate turns the credential into the exchange's principal. Every failure is the verifier's.
func (g *Gateway) authenticate(c *clientConn, ex *exchange, snap *plans.Snapshot) *wire.Error {
	p, err := g.verifier.Verify(snap, ex.head.authorization, c.addr, ex.start)
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
	var room [256]byte
	host, ok := appendHost(room[:0], ex.head.host)
	if ok && g.isShared(host) {
		return g.named(ex, snap)
	}
	var own *plans.Cluster
	if ok {
		own = g.clusterOfHost(host, snap)
	}
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
	act := clusterRef(ex.head.act, snap)
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
