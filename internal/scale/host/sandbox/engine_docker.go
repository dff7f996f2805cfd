package sandbox

import (
	"encoding/json"
	"strings"
)

func init() {
	registerEngine(&engine{
		Name: "docker",
		Paths: []pathRule{
			{Match: expr(`docker-(?P<id>{hex})\.scope`), Place: PlaceContainer, Driver: "systemd"},
			{Match: expr("(?P<id>{hex})"), Under: expr("docker"), Place: PlaceContainer, Driver: "cgroupfs"},
		},
		States: []stateFiles{{
			Dirs: []string{"/var/lib/docker/containers"}, Home: []string{".local/share/docker/containers"},
			File: "{id}/config.v2.json", Parse: parseDocker,
		}},
		Rows: []row{
			{
				Name: "docker-systemd", Title: "Docker, systemd driver: docker-<id>.scope", Driver: "systemd",
				Pod: new(false), Memory: charged{Workload: {PlaceContainer}},
			},
			{
				Name: "docker-cgroupfs", Title: "Docker, cgroupfs driver: /docker/<id>", Driver: "cgroupfs",
				Pod: new(false), Memory: charged{Workload: {PlaceContainer}},
			},
		},
	})
}

// parseDocker parses config.v2.json of a container (container.Container in moby). If cri-dockerd created it, its
// labels are those of Kubernetes and include annotations.
func parseDocker(s *state, _ string, text []byte) error {
	var f struct {
		Name   string
		Config struct {
			Image  string
			Labels map[string]string
		}
	}
	if err := json.Unmarshal(text, &f); err != nil {
		return err
	}
	s.annotate(f.Config.Labels)
	if len(f.Name) <= maxPath {
		take(&s.Container, strings.TrimPrefix(f.Name, "/"))
	}
	s.Image = f.Config.Image
	s.Labels = f.Config.Labels
	return nil
}
