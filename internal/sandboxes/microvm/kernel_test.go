package microvm

import (
	"slices"
	"testing"
)

// TestNewestFirst: a later revision is newer, however many digits it has.
func TestNewestFirst(t *testing.T) {
	names := []string{"vmlinuz-6.1.0-9-cloud-amd64", "vmlinuz-5.10.0-30-cloud-amd64", "vmlinuz-6.1.0-10-cloud-amd64",
		"vmlinuz-6.12-cloud-amd64"}
	NewestFirst(names)
	if want := []string{"vmlinuz-6.12-cloud-amd64", "vmlinuz-6.1.0-10-cloud-amd64", "vmlinuz-6.1.0-9-cloud-amd64",
		"vmlinuz-5.10.0-30-cloud-amd64"}; !slices.Equal(names, want) {
		t.Errorf("%q", names)
	}
}
