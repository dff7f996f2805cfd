package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	"tare/internal/experiment/engine"
	"tare/internal/experiment/record"
	"tare/internal/experiment/spec"
	"tare/internal/kube/agents"
	"tare/internal/kube/coordinator"
	"tare/internal/kube/pods"
	"tare/internal/lib/fault"
	"tare/internal/lib/self"
	"tare/internal/results/session"
)

func init() { register(newCoordinator) }

// newCoordinator returns the hidden command that runs the coordinator of a run in its pod.
func newCoordinator(*connection) *cobra.Command {
	return &cobra.Command{Use: pods.Coordinator, Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o, err := pods.ReadOrder()
			if err != nil {
				return err
			}
			return coordinate(cmd.Context(), &o)
		}}
}

// coordinate runs the ordered experiment, and then waits until the run directory has been fetched, but no longer than
// pods.KeptFor.
func coordinate(ctx context.Context, o *pods.Order) error {
	work, cancel := context.WithCancel(ctx)
	defer cancel()
	news := coordinator.NewServer(o.Dir, cancel)
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(coordinator.Port)))
	if err != nil {
		return fault.Wrap(err, fault.Machine, "", "", "cannot listen for commands that follow the run")
	}
	server := http.Server{Handler: news.Handler(), ReadHeaderTimeout: 10 * time.Second}
	go server.Serve(l) //nolint:errcheck // a follower reports that it does not answer
	defer server.Close()
	time.AfterFunc(o.Life, func() {
		fmt.Fprintf(news, "tare: the run has lasted %v, its time limit: ending it\n", o.Life)
		cancel()
	})
	err = runOrder(work, o, news)
	if err != nil && ctx.Err() != nil {
		err = fault.New(fault.Invalid, "", "run it again; the trials that had ended are kept",
			"the coordinator's pod was deleted or evicted: the run is partial")
	}
	news.End(err)
	select {
	case <-news.Fetched():
		time.Sleep(100 * time.Millisecond) // for the answer to be sent
	// The wait is the same if the pod is being deleted: the kubelet ends it after the grace period.
	case <-time.After(pods.KeptFor):
	}
	return nil
}

// runOrder runs the ordered experiment, unless an earlier process of this coordinator has begun it.
func runOrder(ctx context.Context, o *pods.Order, news *coordinator.Server) error {
	if own := self.Version + " " + self.Build(); own != o.Version {
		return fault.New(fault.Usage, "", "give --image of the same build as kubectl-tare",
			"the image has kubectl-tare %s, and the run was started by %s", own, o.Version)
	}
	if info, err := os.Stat(filepath.Join(o.Dir, record.TrialsFile)); err == nil {
		news.Holds(info.Size())
		if end := coordinator.Ended(o.Dir); end != nil {
			return end.Err() // the process ended while the results waited to be fetched
		}
		return fault.New(fault.Invalid, "", "run it again; the trials that had ended are kept",
			"the coordinator ended during the run, and was started again: the run is partial")
	}
	config, err := rest.InClusterConfig()
	if err != nil {
		return fault.Wrap(err, fault.Machine, "", "", "the coordinator cannot access the API server")
	}
	config.UserAgent = "kubectl-tare/" + self.Version
	c, err := agents.New(config)
	if err != nil {
		return err
	}
	c.Access = o.Access
	s, err := spec.Parse(o.File, o.Spec, nil)
	if err == nil {
		err = s.Apply(o.Overrides)
	}
	if err != nil {
		return err
	}
	if len(o.Spread) > 0 {
		s.ScaleNodes(len(o.Spread)) // as "kubectl tare run" did, which has shown the result to the user
	}
	w, err := record.Create(o.Dir, o.Run)
	if err != nil {
		return err
	}
	news.Holds(0)
	runner := &engine.Runner{Spec: s, Record: &o.Run, Longer: pods.TrialTakes,
		Place: pods.New(pods.Options{Cluster: c, Nodes: o.Nodes, NodeOf: o.NodeOf, Spread: o.Spread, Image: o.Image,
			Version: o.Version, Token: o.Token, Owned: o.Owned, Accounts: s.Accounts(),
			Agents: func(ctx context.Context) ([]agents.Agent, error) { return c.Agents(ctx, o.Agents) },
			Wanted: func(ctx context.Context) (int, error) { return c.Wanted(ctx, o.Agents) }})}
	_, err = session.Measure(ctx, runner, &coordinator.Recorder{Writer: w, Server: news, Run: &o.Run},
		session.Output{Log: io.MultiWriter(news, os.Stderr), Terminal: os.Stderr})
	return errors.Join(err, w.Close())
}
