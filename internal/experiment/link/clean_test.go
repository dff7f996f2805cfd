package link

import (
	"errors"
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"tare/internal/experiment/placement"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/host/proc"
)

// TestClean: interfaces whose owners have ended are removed; those of live owners, and those of others, are kept.
// Remove keeps those of others, too.
func TestClean(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it makes network namespaces")
	}
	l, err := cgroup.Discover(cgroup.Roots{})
	if err != nil {
		t.Fatal(err)
	}
	self, err := proc.FS{}.Identify()
	if err != nil {
		t.Fatal(err)
	}
	dead := self
	dead.Start++ // as if the PID had been reused
	n, err := NewNamespace()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	}()
	err = n.Do(func() error {
		for name, alias := range map[string]string{
			"living": "tare-nodes-" + self.String(), "dead": "tare-nodes-" + dead.String(),
			"foreign": "somebody's", "nameless": "",
		} {
			attributes := netlink.NewLinkAttrs()
			attributes.Name = name
			if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attributes}); err != nil {
				return err
			}
			if err := Configure(name, alias, netip.Prefix{}); err != nil {
				return err
			}
		}
		owners := placement.NewOwners(l)
		defer owners.Close()
		removed, err := Clean(owners)
		if !slices.Equal(removed, []string{"dead"}) || len(owners.Left()) > 0 {
			t.Errorf("removed %q, left alone %+v", removed, owners.Left())
		}
		alias := "tare-nodes-" + self.String()
		err = errors.Join(err, Remove("living", alias), Remove("foreign", alias), Remove("absent", alias))
		if _, gone := netlink.LinkByName("living"); gone == nil {
			t.Error("what has the alias was not removed")
		}
		if _, gone := netlink.LinkByName("foreign"); gone != nil {
			t.Errorf("what has another alias was removed: %v", gone)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
