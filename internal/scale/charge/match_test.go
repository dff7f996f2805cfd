package charge

import (
	"strings"
	"testing"
)

func TestMatchPath(t *testing.T) {
	for _, c := range []struct {
		pattern string
		yes, no string // paths, separated by spaces
	}{
		{"/a", "/a", "/ /b /a/b /ab"},
		{"/a/", "/a", "/a/b"},
		{"/kubepods/shop*", "/kubepods/shop /kubepods/shop-1", "/kubepods /kubepods/shop/x /kubepods/ashop"},
		{"/kube-system/*", "/kube-system/a", "/kube-system /kube-system/a/b"},
		{"/**/proxy", "/proxy /a/proxy /a/b/proxy", "/ /proxy/a /a/xproxy"},
		{"/a/**", "/a /a/b /a/b/c", "/ /b"},
		{"/**", "/ /a /a/b", ""},
		{"/", "/", "/a"},
		{"/a/**/b/**/c", "/a/b/c /a/x/b/y/z/c /a/b/b/c/c", "/a/c /a/b /b/c"},
		{"/a/*/c?", "/a/b/cd", "/a/c /a/b/c /a/b/cde"},
		{`/s/dev\x2dby.mount`, `/s/dev\x2dby.mount`, "/s/dev-by.mount"},
		{`/s/\*\?\,\\`, `/s/*?,\`, "/s/ab,c"},
		{"/a[bc]", "/a[bc]", "/ab"},
	} {
		for path := range strings.FieldsSeq(c.yes) {
			if !matchPath(c.pattern, path) {
				t.Errorf("%s does not match %s", c.pattern, path)
			}
		}
		for path := range strings.FieldsSeq(c.no) {
			if matchPath(c.pattern, path) {
				t.Errorf("%s matches %s", c.pattern, path)
			}
		}
	}
}

func TestMatchName(t *testing.T) {
	for _, c := range []struct {
		pattern, name string
		want          bool
	}{
		{"containerd*", "containerd-shim", true}, {"containerd*", "containerd", true}, {"containerd*", "xcontainerd",
			false},
		{"*", "", true}, {"?", "", false}, {"", "", true}, {"", "a", false}, {"a*b*c", "aXbYbZc", true}, {"a*b*c",
			"aXbYbZ", false},
		{"kworker/*", "kworker/0:1", true}, {"**a", "bba", true}, {`\*`, "*", true}, {`\*`, "a", false}, {`a\`, `a\`,
			true}, {`*\?`, "ab?", true},
	} {
		if got := matchName(c.pattern, c.name); got != c.want {
			t.Errorf("%q matches %q: %v", c.pattern, c.name, got)
		}
	}
}

func TestMatchProgram(t *testing.T) {
	const name = "edge_filter_for_tenant_a" // of which the kernel has "edge_filter_for"
	for pattern, want := range map[string]bool{
		name: true, "edge_filter_for": true, "edge_filter_for*": true, "*tenant_a": true, "edge_filter": false,
		"edge_filter_for_tenant_b": false, "*_for": true,
	} {
		if got := matchProgram(pattern, name); got != want {
			t.Errorf("%q matches %q: %v", pattern, name, got)
		}
	}
	if matchProgram("edge_filter_for_tenant_a", "edge_filter_for") {
		t.Error("a whole name matches what the kernel keeps of another")
	}
}

// simple does the same as matchName, by trying all possibilities.
func simple(pattern, name string) bool {
	if pattern == "" {
		return name == ""
	}
	c, literal, next := at(pattern, 0)
	if !literal && c == '*' {
		return simple(pattern[next:], name) || name != "" && simple(pattern, name[1:])
	}
	return name != "" && (!literal && c == '?' || c == name[0]) && simple(pattern[next:], name[1:])
}

func FuzzMatchName(f *testing.F) {
	f.Add("a*b?c", "axxbyc")
	f.Add(`\**\\`, `*a\`)
	f.Fuzz(func(t *testing.T, pattern, name string) {
		if len(pattern) > 12 || len(name) > 12 {
			matchName(pattern, name)
			matchPath(pattern, name)
			return
		}
		if matchName(pattern, name) != simple(pattern, name) {
			t.Errorf("%q and %q: %v", pattern, name, matchName(pattern, name))
		}
	})
}

// TestWithin: a pattern matches a group and all groups below it.
func TestWithin(t *testing.T) {
	for path, want := range map[string]bool{
		"/pods/shop": true, "/pods/shop/app": true, "/pods/shop/app/x": true, "/pods": false, "/": false, "/pods/bank": false,
		"/shop": false,
	} {
		if got := Within("/pods/sh*", path); got != want {
			t.Errorf("%s: %v", path, got)
		}
	}
}
