package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func everything(*Route) bool { return true }

func TestEveryOperationIsDescribed(t *testing.T) {
	t.Parallel()
	var components map[string]json.RawMessage
	if err := json.Unmarshal(schemas, &components); err != nil {
		t.Fatal(err)
	}
	ops := map[Op]bool{}
	ids := map[string]Op{}
	for _, r := range Routes {
		ops[r.Op] = true
		d, ok := opDocs[r.Op]
		if !ok {
			t.Errorf("%s %s is not described", r.Method, r.Pattern)
			continue
		}
		if d.id == "" || d.tag == "" || len(d.answers) == 0 {
			t.Errorf("%s %s: the description is not complete: %+v", r.Method, r.Pattern, d)
		}
		if other, twice := ids[d.id]; twice && other != r.Op {
			t.Errorf("%s names two operations", d.id)
		}
		ids[d.id] = r.Op
		if d.body != "" && r.Method != "POST" {
			t.Errorf("%s %s has a body", r.Method, r.Pattern)
		}
		names := []string{d.body}
		for _, a := range d.answers {
			names = append(names, a.schema)
		}
		for _, name := range names {
			if _, ok := components[name]; name != "" && !ok {
				t.Errorf("%s %s: there is no schema %s", r.Method, r.Pattern, name)
			}
		}
	}
	for op, d := range opDocs {
		if !ops[op] {
			t.Errorf("%s describes an operation without a route", d.id)
		}
	}
}

// TestOpenAPIIsADocument checks the structure of OpenAPI 3.1 that clients and generators stumble over.
func TestOpenAPIIsADocument(t *testing.T) {
	t.Parallel()
	for name, info := range map[string]OpenAPIInfo{
		"broker":  {Title: "b", Version: "1", Serves: everything},
		"gateway": {Title: "g", Version: "1", Serves: func(r *Route) bool { return r.Class != ClassBlocked }, Gateway: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			raw := OpenAPI(info)
			if !bytes.Equal(raw, OpenAPI(info)) {
				t.Error("two builds differ")
			}
			var doc any
			if err := json.Unmarshal(raw, &doc); err != nil {
				t.Fatal(err)
			}
			v := validator{t: t, root: doc.(object), ids: map[string]bool{}}
			v.document()
			served := 0
			for i := range Routes {
				r := &Routes[i]
				item, ok := v.paths()[openAPIPath(r.Pattern)].(object)
				if _, has := item[strings.ToLower(r.Method)]; ok && has != info.Serves(r) || !ok && info.Serves(r) {
					t.Errorf("%s %s: described %v, served %v", r.Method, r.Pattern, has, info.Serves(r))
				}
				if info.Serves(r) {
					served++
				}
			}
			if served != v.operations {
				t.Errorf("%d operations for %d routes", v.operations, served)
			}
		})
	}
}

// validator walks a document and reports what OpenAPI 3.1 and JSON Schema do not allow.
type validator struct {
	t          *testing.T
	root       object
	ids        map[string]bool
	operations int
}

func (v *validator) paths() object { return v.root["paths"].(object) }

func (v *validator) bad(format string, args ...any) { v.t.Helper(); v.t.Errorf(format, args...) }

func (v *validator) document() {
	if v.root["openapi"] != "3.1.0" {
		v.bad("openapi is %v", v.root["openapi"])
	}
	info := v.root["info"].(object)
	if info["title"] == "" || info["version"] == "" {
		v.bad("info is %v", info)
	}
	for path, item := range v.paths() {
		if !strings.HasPrefix(path, "/") {
			v.bad("path %q", path)
		}
		for method, op := range item.(object) {
			if !slices.Contains([]string{"get", "post", "put", "delete"}, method) {
				v.bad("%s has a member %q", path, method)
			}
			v.operation(method+" "+path, path, op.(object))
		}
	}
	for name, s := range v.root["components"].(object)["schemas"].(object) {
		v.schema(name, s)
	}
}

var placeholder = regexp.MustCompile(`\{([^}]+)\}`)

func (v *validator) operation(at, path string, op object) {
	v.operations++
	id, _ := op["operationId"].(string)
	if id == "" || v.ids[id] {
		v.bad("%s: operationId %q is empty or not unique", at, id)
	}
	v.ids[id] = true
	inPath := map[string]bool{}
	names := map[string]bool{}
	parameters, _ := op["parameters"].([]any)
	for _, p := range parameters {
		p := p.(object)
		name, in := p["name"].(string), p["in"].(string)
		if names[in+" "+name] {
			v.bad("%s: %s twice", at, name)
		}
		names[in+" "+name] = true
		switch in {
		case "path":
			inPath[name] = true
			if p["required"] != true {
				v.bad("%s: the path parameter %s is not required", at, name)
			}
		case "query":
		default:
			v.bad("%s: a parameter in %q", at, in)
		}
		v.schema(at+" "+name, p["schema"])
	}
	for _, m := range placeholder.FindAllStringSubmatch(path, -1) {
		if !inPath[m[1]] {
			v.bad("%s: %s is not described", at, m[1])
		}
		delete(inPath, m[1])
	}
	if len(inPath) > 0 {
		v.bad("%s: %v are not in the path", at, inPath)
	}
	if body, ok := op["requestBody"].(object); ok {
		v.content(at+" body", body["content"])
	}
	responses := op["responses"].(object)
	if len(responses) < 2 {
		v.bad("%s: responses %v", at, responses)
	}
	for status, r := range responses {
		r := r.(object)
		if r["description"] == "" {
			v.bad("%s %s: no description", at, status)
		}
		if status != "default" && !regexp.MustCompile(`^[1-5]\d\d$`).MatchString(status) {
			v.bad("%s: status %q", at, status)
		}
		if c, ok := r["content"]; ok {
			if status == "204" {
				v.bad("%s: 204 has a body", at)
			}
			v.content(at+" "+status, c)
		}
	}
}

func (v *validator) content(at string, c any) {
	for kind, media := range c.(object) {
		if !strings.Contains(kind, "/") {
			v.bad("%s: media type %q", at, kind)
		}
		v.schema(at, media.(object)["schema"])
	}
}

// schemaMembers are the keywords the schemas use, with those of them that hold schemas again.
var schemaMembers = []string{
	"$ref", "type", "format", "description", "enum", "default", "minimum", "maximum", "minLength", "maxLength", "maxItems", "required",
	"properties", "items", "additionalProperties", "allOf", "oneOf",
}

func (v *validator) schema(at string, s any) {
	m, ok := s.(object)
	if !ok {
		v.bad("%s: a schema is %v", at, s)
		return
	}
	for member := range m {
		if !slices.Contains(schemaMembers, member) {
			v.bad("%s: unknown keyword %q", at, member)
		}
	}
	if to, ok := m["$ref"].(string); ok {
		name, local := strings.CutPrefix(to, "#/components/schemas/")
		if _, there := v.root["components"].(object)["schemas"].(object)[name]; !local || !there {
			v.bad("%s: %s leads nowhere", at, to)
		}
	}
	switch kind := m["type"].(type) {
	case nil:
	case string:
		v.kind(at, kind)
	case []any:
		for _, k := range kind {
			v.kind(at, fmt.Sprint(k))
		}
	default:
		v.bad("%s: type %v", at, kind)
	}
	properties, _ := m["properties"].(object)
	for name, p := range properties {
		v.schema(at+"."+name, p)
	}
	required, _ := m["required"].([]any)
	for _, name := range required {
		if _, ok := properties[name.(string)]; !ok {
			v.bad("%s: %v is required and not described", at, name)
		}
	}
	if items, ok := m["items"]; ok {
		v.schema(at+"[]", items)
	}
	if more, ok := m["additionalProperties"].(object); ok {
		v.schema(at+".*", more)
	}
	for _, keyword := range []string{"allOf", "oneOf"} {
		parts, _ := m[keyword].([]any)
		for _, p := range parts {
			v.schema(at, p)
		}
	}
}

func (v *validator) kind(at, kind string) {
	if !slices.Contains([]string{"object", "array", "string", "integer", "number", "boolean", "null"}, kind) {
		v.bad("%s: type %q", at, kind)
	}
}

func TestOpenAPIDescribesTheOptionsOfAQueue(t *testing.T) {
	t.Parallel()
	var components map[string]struct{ Properties map[string]any }
	if err := json.Unmarshal(schemas, &components); err != nil {
		t.Fatal(err)
	}
	described := components["QueueOptions"].Properties
	for i := range options {
		if _, ok := described[options[i].name]; !ok {
			t.Errorf("%s is not described", options[i].name)
		}
	}
	if len(described) != len(options) {
		t.Errorf("%d options are described, there are %d", len(described), len(options))
	}
}
