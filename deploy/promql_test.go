package deploy

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A reader of the part of PromQL that alerts and dashboards here use. It is stricter than Prometheus: what it does not
// know is an error, so that a misspelt function or label is found without a server. (The module of Prometheus's own parser
// would bring more code than the rest of our dependencies together.)

// kind is the type of an expression.
type kind string

const (
	scalar  kind = "scalar"
	instant kind = "instant vector"
	ranged  kind = "range vector"
	literal kind = "string"
)

// signature is what a function takes and gives.
type signature struct {
	takes []kind
	gives kind
}

var functions = map[string]signature{
	"rate": {[]kind{ranged}, instant}, "increase": {[]kind{ranged}, instant}, "histogram_quantile": {[]kind{scalar, instant}, instant},
	"scalar": {[]kind{instant}, scalar}, "vector": {[]kind{scalar}, instant},
}

// aggregations take a vector, some behind a number.
var aggregations = map[string][]kind{
	"sum": {instant}, "min": {instant}, "max": {instant}, "count": {instant}, "avg": {instant}, "topk": {scalar, instant},
}

var binary = []string{"+", "-", "*", "/", "==", "!=", ">", "<", ">=", "<=", "and", "or", "unless"}

// selector is a metric as an expression names it, with the labels it is matched by.
type selector struct {
	metric   string
	matchers map[string]string // label -> operator and value
}

// expression is what was read: the metrics, the labels its result is grouped by, and its type.
type expression struct {
	selectors []selector
	groupedBy []string
	kind      kind
}

var token = regexp.MustCompile(`^(?:\s+|[a-zA-Z_:][a-zA-Z0-9_:]*|[0-9]+(?:\.[0-9]+)?(?:e[0-9]+)?[smhd]?|"[^"\\]*"|=~|!~|==|!=|>=|<=|[-+*/<>=(){}\[\],])`)

type promReader struct {
	tokens []string
	out    expression
}

// readProm reads an expression.
func readProm(s string) (*expression, error) {
	p := &promReader{}
	for rest := s; rest != ""; {
		m := token.FindString(rest)
		if m == "" {
			return nil, fmt.Errorf("no token at %q", rest)
		}
		if strings.TrimSpace(m) != "" {
			p.tokens = append(p.tokens, m)
		}
		rest = rest[len(m):]
	}
	k, err := p.binary()
	if err == nil && len(p.tokens) > 0 {
		err = fmt.Errorf("what is %q doing there", p.tokens[0])
	}
	if err == nil && k != scalar && k != instant {
		err = fmt.Errorf("it gives a %s", k)
	}
	p.out.kind = k
	return &p.out, err
}

func (p *promReader) peek() string {
	if len(p.tokens) == 0 {
		return ""
	}
	return p.tokens[0]
}

func (p *promReader) next() string {
	t := p.peek()
	if t != "" {
		p.tokens = p.tokens[1:]
	}
	return t
}

func (p *promReader) expect(want string) error {
	if got := p.next(); got != want {
		return fmt.Errorf("got %q, want %q", got, want)
	}
	return nil
}

// binary reads operands with operators between them; precedence does not matter to who only wants names and types.
func (p *promReader) binary() (kind, error) {
	left, err := p.operand()
	if err != nil {
		return "", err
	}
	for slices.Contains(binary, p.peek()) {
		op := p.next()
		for _, word := range []string{"on", "ignoring", "group_left", "group_right"} {
			if p.peek() == word {
				p.next()
				if _, err := p.labels(); err != nil {
					return "", err
				}
			}
		}
		right, err := p.operand()
		if err != nil {
			return "", err
		}
		set := op == "and" || op == "or" || op == "unless"
		if left == ranged || right == ranged || left == literal || right == literal || set && (left == scalar || right == scalar) {
			return "", fmt.Errorf("%s %s %s", left, op, right)
		}
		if right == instant {
			left = instant
		}
	}
	return left, nil
}

func (p *promReader) operand() (kind, error) {
	t := p.next()
	switch {
	case t == "":
		return "", errors.New("it ends too early")
	case t == "-":
		return p.operand()
	case t == "(":
		k, err := p.binary()
		if err != nil {
			return "", err
		}
		return k, p.expect(")")
	case t[0] == '"':
		return literal, nil
	case t[0] >= '0' && t[0] <= '9':
		return scalar, nil
	}
	if _, ok := aggregations[t]; ok {
		return p.aggregation(t)
	}
	if p.peek() == "(" {
		f, ok := functions[t]
		if !ok {
			return "", fmt.Errorf("no function %s", t)
		}
		return f.gives, p.arguments(t, f.takes)
	}
	if !regexp.MustCompile(`^[a-z_]`).MatchString(t) {
		return "", fmt.Errorf("what is %q doing there", t)
	}
	return p.selector(t)
}

func (p *promReader) aggregation(name string) (kind, error) {
	grouped := func() error {
		if p.peek() != "by" && p.peek() != "without" {
			return nil
		}
		p.next()
		labels, err := p.labels()
		p.out.groupedBy = append(p.out.groupedBy, labels...)
		return err
	}
	if err := grouped(); err != nil {
		return "", err
	}
	if err := p.arguments(name, aggregations[name]); err != nil {
		return "", err
	}
	return instant, grouped()
}

func (p *promReader) arguments(name string, want []kind) error {
	if err := p.expect("("); err != nil {
		return err
	}
	for i, w := range want {
		if i > 0 {
			if err := p.expect(","); err != nil {
				return err
			}
		}
		got, err := p.binary()
		if err != nil {
			return err
		}
		if got != w {
			return fmt.Errorf("%s takes a %s, not a %s", name, w, got)
		}
	}
	return p.expect(")")
}

// labels reads names in parentheses.
func (p *promReader) labels() (names []string, _ error) {
	if err := p.expect("("); err != nil {
		return nil, err
	}
	for p.peek() != ")" {
		if len(names) > 0 {
			if err := p.expect(","); err != nil {
				return nil, err
			}
		}
		name := p.next()
		if !regexp.MustCompile(`^[a-z_]+$`).MatchString(name) {
			return nil, fmt.Errorf("%q is no label", name)
		}
		names = append(names, name)
	}
	return names, p.expect(")")
}

func (p *promReader) selector(name string) (kind, error) {
	s := selector{metric: name, matchers: map[string]string{}}
	if p.peek() == "{" {
		p.next()
		for p.peek() != "}" {
			if len(s.matchers) > 0 {
				if err := p.expect(","); err != nil {
					return "", err
				}
			}
			label, op, value := p.next(), p.next(), p.next()
			if !slices.Contains([]string{"=", "!=", "=~", "!~"}, op) || len(value) < 2 || value[0] != '"' {
				return "", fmt.Errorf("a matcher is not %s %s %s", label, op, value)
			}
			if _, again := s.matchers[label]; again {
				return "", fmt.Errorf("%s is matched twice", label)
			}
			value = value[1 : len(value)-1]
			if strings.HasSuffix(op, "~") {
				if _, err := regexp.Compile(value); err != nil {
					return "", err
				}
			}
			s.matchers[label] = op + value
		}
		if err := p.expect("}"); err != nil {
			return "", err
		}
	}
	p.out.selectors = append(p.out.selectors, s)
	if p.peek() != "[" {
		return instant, nil
	}
	p.next()
	if d := p.next(); !regexp.MustCompile(`^[0-9]+[smhd]$`).MatchString(d) {
		return "", fmt.Errorf("%q is no duration", d)
	}
	return ranged, p.expect("]")
}

func TestExpressionsAreRead(t *testing.T) {
	t.Parallel()
	e, err := readProm(`histogram_quantile(0.99, sum by (le, op) (rate(a_bucket{x=~"y|z", v!="1"}[5m]))) > 0.5 and b / on (instance) c`)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range e.selectors {
		names = append(names, s.metric)
	}
	if got := fmt.Sprint(names, e.groupedBy, e.selectors[0].matchers, " ", e.kind); got != "[a_bucket b c] [le op] map[v:!=1 x:=~y|z] instant vector" {
		t.Errorf("got %s", got)
	}
	for rule, bad := range map[string]string{
		"a misspelt function":        `rte(a[5m])`,
		"a rate of no range":         `rate(a)`,
		"a range by itself":          `a[5m]`,
		"an open parenthesis":        `sum(a`,
		"a closed one":               `sum(a))`,
		"an open matcher":            `a{b="c"`,
		"a matcher of no string":     `a{b=c}`,
		"an impossible pattern":      `a{b=~"("}`,
		"two expressions":            `a b`,
		"a sum of a number":          `sum(1)`,
		"an operator of no operand":  `a >`,
		"a quantile of no histogram": `histogram_quantile(a, 0.9)`,
		"a number in a set":          `a or 0`,
		"a variable of Grafana":      `rate(a[$__interval])`,
	} {
		if _, err := readProm(bad); err == nil {
			t.Errorf("%s passes: %s", rule, bad)
		}
	}
}

// foreign are the metrics of others that our files use, with their labels: of Prometheus itself and of postgres_exporter.
var foreign = func() families {
	f := families{}
	for name, labels := range map[string][]string{
		"up": nil, "pg_up": nil, "pg_settings_max_connections": nil, "pg_replication_is_replica": nil, "pg_replication_lag_seconds": nil,
		"pg_wal_size_bytes": nil, "pg_database_size_bytes": {"datname"}, "pg_locks_count": {"datname", "mode"},
		"pg_stat_activity_count": {"datname", "state"}, "pg_stat_activity_max_tx_duration": {"datname", "state"},
		"pg_stat_user_tables_n_dead_tup": {"datname", "schemaname", "relname"},
	} {
		f[name] = map[string]bool{"job": true, "instance": true}
		for _, l := range labels {
			f[name][l] = true
		}
	}
	for _, column := range []string{
		"numbackends", "xact_commit", "xact_rollback", "tup_inserted", "tup_updated", "tup_deleted", "blks_hit", "blks_read",
		"deadlocks", "temp_bytes",
	} {
		f["pg_stat_database_"+column] = map[string]bool{"job": true, "instance": true, "datname": true}
	}
	return f
}()

// check reads an expression and holds its metrics and labels against what the parts show. It returns the labels that the
// result may have.
func (f families) check(expr string) (map[string]bool, error) {
	e, err := readProm(expr)
	if err != nil {
		return nil, err
	}
	all := map[string]bool{"job": true, "instance": true}
	for _, s := range e.selectors {
		labels := f[s.metric]
		if labels == nil {
			labels = foreign[s.metric]
		}
		if labels == nil {
			return nil, fmt.Errorf("no part shows %s", s.metric)
		}
		for l, value := range s.matchers {
			if !labels[l] {
				return nil, fmt.Errorf("%s has no label %s", s.metric, l)
			}
			if l == "code" {
				if err := knownCodes(value); err != nil {
					return nil, err
				}
			}
		}
		maps.Copy(all, labels)
	}
	for _, l := range e.groupedBy {
		if !all[l] {
			return nil, fmt.Errorf("nothing in it has the label %s", l)
		}
	}
	return all, nil
}
