package proxy

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tare/internal/lib/fault"
)

// Aliases of aliases in a file of resources are refused before they become values: 531,441 of a few hundred bytes.
func TestAliases(t *testing.T) {
	text := "x0: &x0 [a, a, a, a, a, a, a, a, a]\n"
	for i := 1; i < 6; i++ {
		list := strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*x%d, ", i-1), 9), ", ")
		text += fmt.Sprintf("x%d: &x%d [%s]\n", i, i, list)
	}
	name := filepath.Join(t.TempDir(), "proxy.yaml")
	if err := os.WriteFile(name, []byte(text+"resources: []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := fileOf(name)
	if fault.CodeOf(err) != fault.Usage || !strings.Contains(err.Error(), "its aliases stand for more") {
		t.Errorf("got %v", err)
	}
}
