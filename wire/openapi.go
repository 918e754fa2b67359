package wire

import (
	_ "embed"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
)

// schemas are the components of the document, by name: the shapes of bodies, written by hand.
//
//go:embed openapi/schemas.json
var schemas []byte

// OpenAPIInfo says what a document describes.
type OpenAPIInfo struct {
	Title   string
	Version string
	Serves  func(*Route) bool // the routes of the server that answers with the document
	Gateway bool              // it enforces plans: 429 is an answer of every route
}

// object is a JSON object; encoding/json sorts its keys, so a document is the same bytes every time.
type object = map[string]any

// OpenAPI returns an OpenAPI 3.1 document of the routes, made of Routes, the table of operations and the schemas. It is
// built from the program alone: build it once and keep it.
func OpenAPI(info OpenAPIInfo) []byte {
	var components object
	if err := json.Unmarshal(schemas, &components); err != nil {
		panic(err) // part of the program, parsed by a test
	}
	codes := Codes()
	slices.Sort(codes)
	components["ErrorCode"] = object{"type": "string", "enum": codes}
	paths := object{}
	used := map[string]bool{}
	for i := range Routes {
		r := &Routes[i]
		if !info.Serves(r) {
			continue
		}
		path := openAPIPath(r.Pattern)
		item, ok := paths[path].(object)
		if !ok {
			item = object{}
			paths[path] = item
		}
		item[strings.ToLower(r.Method)] = operation(r, &info, used)
	}
	prune(components, paths)
	doc, err := json.Marshal(object{
		"openapi": "3.1.0",
		"info":    object{"title": info.Title, "version": info.Version},
		"paths":   paths,
		"components": object{
			"schemas":         components,
			"securitySchemes": object{"bearer": object{"type": "http", "scheme": "bearer"}},
		},
		"security": []any{object{"bearer": []any{}}},
	})
	if err != nil {
		panic(err) // maps of strings, numbers and what was JSON before
	}
	return doc
}

// openAPIPath turns ":name" into "{name}".
func openAPIPath(pattern string) string {
	segments := strings.Split(pattern, "/")
	for i, s := range segments {
		if name, ok := strings.CutPrefix(s, ":"); ok {
			segments[i] = "{" + name + "}"
		}
	}
	return strings.Join(segments, "/")
}

func ref(schema string) object { return object{"$ref": "#/components/schemas/" + schema} }

func content(schema string) object {
	kind := "application/json"
	if schema == "Text" {
		kind = "text/plain"
	}
	return object{kind: object{"schema": ref(schema)}}
}

func operation(r *Route, info *OpenAPIInfo, used map[string]bool) object {
	d := opDocs[r.Op]
	id := d.id
	for n := 2; used[id]; n++ {
		id = d.id + strconv.Itoa(n) // the operation is served under two paths
	}
	used[id] = true
	responses := object{"default": object{"description": "refused or failed", "content": content("Error")}}
	for _, a := range d.answers {
		response := object{"description": a.text}
		if a.schema != "" {
			response["content"] = content(a.schema)
		}
		responses[strconv.Itoa(a.status)] = response
	}
	if info.Gateway && r.Access != AccessPublic {
		responses["429"] = object{
			"description": "a rate of the plan is used up",
			"headers":     object{HeaderRetryAfter: object{"description": "whole seconds", "schema": object{"type": "integer", "minimum": 1}}},
			"content":     content("Error"),
		}
	}
	op := object{"operationId": id, "summary": r.Doc, "tags": []string{d.tag}, "responses": responses, "x-access": r.Access.String()}
	if parameters := parametersOf(r, d); len(parameters) > 0 {
		op["parameters"] = parameters
	}
	if d.body != "" {
		op["requestBody"] = object{"required": !d.optional, "content": content(d.body)}
	}
	if r.Access == AccessPublic {
		op["security"] = []any{}
	}
	return op
}

func parametersOf(r *Route, d opDoc) []any {
	var all []any
	for s := range strings.SplitSeq(r.Pattern, "/") {
		if name, ok := strings.CutPrefix(s, ":"); ok {
			all = append(all, object{"name": name, "in": "path", "required": true, "schema": object{"type": "string", "minLength": 1, "maxLength": paramBytes(name)}})
		}
	}
	for _, p := range d.query {
		all = append(all, object{"name": p.name, "in": "query", "required": p.required, "schema": p.schema()})
	}
	return all
}

// queryParam is one parameter of a query.
type queryParam struct {
	name     string
	kind     string // a JSON type, "time", or the words it may be, separated or ended by |
	def      any    // nil: none
	most     int    // of a number; 0: no bound
	required bool
}

func (p queryParam) schema() object {
	s := object{}
	switch {
	case p.kind == "time":
		s["type"], s["format"] = "string", "date-time"
	case strings.Contains(p.kind, "|"):
		s["type"], s["enum"] = "string", strings.Split(strings.TrimSuffix(p.kind, "|"), "|")
	default:
		s["type"] = p.kind
	}
	if p.def != nil {
		s["default"] = p.def
	}
	if p.most > 0 {
		s["maximum"] = p.most
	}
	return s
}

// prune drops the schemas that no path leads to.
func prune(components, paths object) {
	reached := map[string]bool{}
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case object:
			if to, ok := v["$ref"].(string); ok {
				name := strings.TrimPrefix(to, "#/components/schemas/")
				if !reached[name] {
					reached[name] = true
					walk(components[name])
				}
			}
			for _, member := range v {
				walk(member)
			}
		case []any:
			for _, element := range v {
				walk(element)
			}
		}
	}
	walk(paths)
	for name := range components {
		if !reached[name] {
			delete(components, name)
		}
	}
}
