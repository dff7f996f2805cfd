package kube

import (
	"fmt"
	"path/filepath"

	"tare/test/binary"
)

// AgentImage builds tare-agent, tare and others, and puts them into dir as the image tare-agent:0.1.0, which the
// manifests in deploy/kubernetes name. It returns the path of the archive, for Options.Images. Experiments also need
// kubectl-tare, which is left out by default because it is large.
func AgentImage(dir string, others ...string) (string, error) {
	var programs []string
	for _, name := range append([]string{"tare-agent", "tare"}, others...) {
		path := filepath.Join(dir, name)
		if err := binary.Program(path, "./cmd/"+name); err != nil {
			return "", err
		}
		programs = append(programs, path)
	}
	archive := filepath.Join(dir, "tare-agent.oci.tar")
	cmd, err := binary.Go(append([]string{"run", "./release/image", archive}, programs...)...)
	if err != nil {
		return "", err
	}
	cmd.Env = append(cmd.Env, "VERSION=0.1.0", "COMMIT=0000000000000000000000000000000000000000", "SOURCE_DATE_EPOCH=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("making the image of tare-agent: %w\n%s", err, out)
	}
	return archive, nil
}

// ApplyAgent applies the manifests in deploy/kubernetes, and waits until the agent is ready on every node.
func (c *Cluster) ApplyAgent() error {
	root, err := binary.Root()
	if err != nil {
		return err
	}
	if _, err := c.Kubectl("apply", "-k", filepath.Join(root, "deploy/kubernetes")); err != nil {
		return err
	}
	_, err = c.Kubectl("-n", "tare", "rollout", "status", "daemonset/tare-agent", "--timeout=120s")
	return err
}
