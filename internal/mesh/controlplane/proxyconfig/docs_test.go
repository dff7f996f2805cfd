package proxyconfig

import (
	"os"
	"strings"
	"testing"
)

// documented returns the examples of docs/xds.md.
func documented(t *testing.T) (examples []string) {
	t.Helper()
	b, err := os.ReadFile("../../../../docs/xds.md")
	if err != nil {
		t.Fatal(err)
	}
	for rest := string(b); ; {
		var found bool
		if _, rest, found = strings.Cut(rest, "```yaml\n"); !found {
			break
		}
		var one string
		one, rest, _ = strings.Cut(rest, "```\n")
		examples = append(examples, one)
	}
	if len(examples) != 2 {
		t.Fatalf("docs/xds.md has %d examples, want 2", len(examples))
	}
	return examples
}

// TestDocumented: the examples are valid, and mean what the page says.
func TestDocumented(t *testing.T) {
	examples := documented(t)
	if r := shared(t, examples[0]); len(r.Listeners) != 2 || len(r.Clusters) != 4 {
		t.Errorf("the first example: %d listeners, %d clusters", len(r.Listeners), len(r.Clusters))
	}
	m := compiled(t, examples[1])
	if got := strings.Join(m.Proxies(), " "); got != "frontend-1 web-1 web-next-1" {
		t.Errorf("the second example: %s", got)
	}
	if id := m.Identity("web-1"); id != "spiffe://mesh.local/ns/shop/sa/web" {
		t.Errorf("web-1 is %s", id)
	}
}
