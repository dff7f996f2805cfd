package sandbox

import (
	"encoding/json"
	"errors"
)

// podmanStorage are the directories that hold containers, by storage driver.
var podmanStorage = []string{"overlay-containers", "vfs-containers", "btrfs-containers", "zfs-containers"}

func init() {
	var dirs, home []string
	for _, d := range podmanStorage {
		dirs = append(dirs, "/var/lib/containers/storage/"+d, "/run/containers/storage/"+d)
		home = append(home, ".local/share/containers/storage/"+d)
	}
	registerEngine(&engine{
		Name: "podman",
		Paths: []pathRule{
			{Match: expr(`libpod-conmon-(?P<id>{hex})\.scope`), Place: PlaceHelper, Driver: "systemd"},
			{Match: expr("libpod-conmon-(?P<id>{hex})"), Place: PlaceHelper, Driver: "cgroupfs"},
			{Match: expr(`libpod-(?P<id>{hex})\.scope`), Place: PlaceContainer, Driver: "systemd"},
			{Match: expr("libpod-(?P<id>{hex})"), Place: PlaceContainer, Driver: "cgroupfs"},
			// With --cgroups=split, as used by Quadlet.
			{Match: expr("libpod-payload-(?P<id>{hex})"), Place: PlaceContainer, Driver: "cgroupfs"},
		},
		States: []stateFiles{
			{Dirs: dirs, Home: home, File: "containers.json", Parse: parseStorage},
			{Dirs: dirs, Home: home, File: "volatile-containers.json", Parse: parseStorage}, // with podman run --rm
		},
		Rows: []row{
			{
				Name: "podman-systemd", Title: "podman, systemd driver: libpod-<id>.scope", Driver: "systemd",
				Memory: charged{Workload: {PlaceContainer}},
			},
			{
				Name: "podman-cgroupfs", Title: "podman, cgroupfs driver: libpod_parent/libpod-<id>", Driver: "cgroupfs",
				Memory: charged{Workload: {PlaceContainer}},
			},
		},
	})
}

var errNotListed = errors.New("the container is not in the list")

// parseStorage parses a storage's list of containers (Container in containers/storage), whose metadata, written by
// podman, contains the name of the image. A container's config.json has neither the name of the container nor that of
// the image, and labels are only in podman's database.
func parseStorage(s *state, _ string, text []byte) error {
	var all []struct {
		ID       string   `json:"id"`
		Names    []string `json:"names"`
		Metadata string   `json:"metadata"`
	}
	if err := json.Unmarshal(text, &all); err != nil {
		return err
	}
	for _, c := range all {
		if c.ID != s.id {
			continue
		}
		if len(c.Names) > 0 && len(c.Names[0]) <= maxPath {
			s.Container = c.Names[0]
		}
		var metadata struct {
			Image string `json:"image-name"`
		}
		if json.Unmarshal([]byte(c.Metadata), &metadata) == nil {
			s.Image = metadata.Image
		}
		return nil
	}
	return errNotListed
}
