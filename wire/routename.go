package wire

// routeNames has the name of each operation's first route, by Op.
var routeNames = func() (names []string) {
	for i := range Routes {
		r := &Routes[i]
		for int(r.Op) >= len(names) {
			names = append(names, "")
		}
		if names[r.Op] == "" {
			names[r.Op] = r.Method + " " + r.Pattern
		}
	}
	return names
}()

// Name returns the method and the pattern of a route, "POST /api/v1/push", or "unknown" for nil: what a span is called.
// Like the pattern it is one of a bounded set.
func (r *Route) Name() string {
	if r == nil {
		return "unknown"
	}
	if name := routeNames[r.Op]; len(name) == len(r.Method)+1+len(r.Pattern) {
		return name
	}
	return r.Method + " " + r.Pattern // a second route of an operation
}
