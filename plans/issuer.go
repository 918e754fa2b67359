package plans

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
)

// Issuer is an identity provider whose tokens count on the clusters of one tenant (docs/design/credentials.md). Immutable.
type Issuer struct {
	ID         uuid.UUID
	Tenant     uuid.UUID
	Name       string   // a slug, the tenant's own word for it
	URL        string   // "iss" of its tokens, exactly
	KeysURL    string   // of its key set; "": where its discovery document says
	Audience   string   // that its tokens must name; never ""
	Algorithms []string // some of RS256, ES256, EdDSA
	Rules      []ClaimRule
}

// ClaimRule gives roles and scopes to the bearers of tokens with a claim of that value. What is absent gives nothing.
type ClaimRule struct {
	Claim    []string // name of the claim; several lead into objects
	Value    string   // of a text, or one member of a list of texts; exactly
	Roles    []Role
	Scopes   Scope
	Clusters []string // slugs of the tenant's; none: all of them
}

// Covers reports whether the rule counts on the cluster, which must be its tenant's.
func (r *ClaimRule) Covers(c *Cluster) bool {
	return len(r.Clusters) == 0 || slices.Contains(r.Clusters, c.Slug)
}

// ParseClaimRules reads the column rules of an issuer. Unknown roles and scopes grant nothing, and a rule with a member that
// is not known here is left out: it may be a condition, and rules only ever add. Only what is no list of objects is an error.
func ParseClaimRules(text []byte) ([]ClaimRule, error) {
	var rows []map[string]json.RawMessage
	if err := json.Unmarshal(text, &rows); err != nil {
		return nil, fmt.Errorf("rules: %w", err)
	}
	rules := make([]ClaimRule, 0, len(rows))
	for _, row := range rows {
		if r, ok := parseClaimRule(row); ok {
			rules = append(rules, r)
		}
	}
	return rules, nil
}

func parseClaimRule(row map[string]json.RawMessage) (r ClaimRule, ok bool) {
	var name string
	var roles, scopes []string
	for member, into := range map[string]any{"value": &r.Value, "roles": &roles, "scopes": &scopes, "clusters": &r.Clusters} {
		raw, stated := row[member]
		if stated && json.Unmarshal(raw, into) != nil {
			return r, false
		}
		delete(row, member)
	}
	if json.Unmarshal(row["claim"], &name) == nil {
		r.Claim = []string{name}
	} else if json.Unmarshal(row["claim"], &r.Claim) != nil {
		return r, false
	}
	delete(row, "claim")
	for _, role := range roles {
		if role := ParseRole(role); role != RoleNone {
			r.Roles = append(r.Roles, role)
		}
	}
	r.Scopes = ParseScopes(scopes)
	return r, len(row) == 0 && len(r.Claim) > 0 && r.Value != ""
}

// equal reports whether both are the same in every respect.
func (i *Issuer) equal(o *Issuer) bool {
	return i.ID == o.ID && i.Tenant == o.Tenant && i.Name == o.Name && i.URL == o.URL && i.KeysURL == o.KeysURL &&
		i.Audience == o.Audience && slices.Equal(i.Algorithms, o.Algorithms) &&
		slices.EqualFunc(i.Rules, o.Rules, func(a, b ClaimRule) bool {
			return a.Value == b.Value && a.Scopes == b.Scopes && slices.Equal(a.Claim, b.Claim) &&
				slices.Equal(a.Roles, b.Roles) && slices.Equal(a.Clusters, b.Clusters)
		})
}

// Cutoff is an instant before which tokens do not count, by when they say they were issued. Of is a tenant (every token on
// its clusters), a user (tokens of ours) or an issuer (its tokens; with Subject only that subject's); with User it is a
// cluster, and only the roles that the user's tokens state of it end.
type Cutoff struct {
	Of      uuid.UUID
	Subject string
	User    uuid.UUID
	Before  time.Time
}

type cutoffKey struct {
	of, user uuid.UUID
	subject  string
}

// indexCutoffs finds cut-offs by what they are of. All ids are random, so one map does for all kinds.
func indexCutoffs(cutoffs []Cutoff) map[cutoffKey]time.Time {
	index := make(map[cutoffKey]time.Time, len(cutoffs))
	for _, c := range cutoffs {
		index[cutoffKey{c.Of, c.User, c.Subject}] = c.Before
	}
	return index
}
