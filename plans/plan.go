package plans

// Plan is a row of the catalogue. Immutable.
type Plan struct {
	Code      string
	Name      string
	CellClass string // shared or dedicated: where its clusters are meant to live
	Active    bool   // may be assigned to a cluster
	Limits    Limits // as the catalogue says: a burst may be absent; Merge gives the effective limits
	Features  map[string]bool
}
