package subject

import (
	"errors"
	"testing"

	"tare/internal/experiment/kind"
	"tare/internal/lib/param"
)

// launching is a trial that calls a function when a sandbox's group is made.
type launching struct {
	kind.Trial
	at func() error
}

func (l launching) ServingGroup(string, string, param.Values) (kind.Group, error) { return nil, l.at() }

// noGroup is a group without processes.
type noGroup struct{ kind.Group }

func (noGroup) TreeName() string { return "tare-trial-p1-t1" }
func (noGroup) Members() []int   { return nil }

// TestLaunchBesideFind: find may be called while a load's sandbox is being launched. It does not see the sandbox before
// that is complete, and sees it afterwards even if the launch failed.
func TestLaunchBesideFind(t *testing.T) {
	j := &joined{part: &kind.Part{Options: param.Values{settingRuntime: "runc"}}, sandboxes: map[string]*sandboxed{},
		links: map[string]int{}}
	stop := errors.New("stop")
	j.trial = launching{at: func() error {
		if found := j.find(); len(found) != 0 {
			t.Errorf("found %v", found)
		}
		return stop
	}}
	launch := kind.Launch{Name: "one", Group: noGroup{}}
	if err := j.Launch(t.Context(), launch); !errors.Is(err, stop) || len(j.find()) != 1 {
		t.Errorf("%v, found %v", err, j.find())
	}
	j.part.Options[settingRuntime] = none
	began := make(chan struct{})
	launch.Start = func(kind.Group, string, ...string) (int, error) { close(began); return -1, nil }
	ended := make(chan error)
	go func() { ended <- j.Launch(t.Context(), launch) }()
	<-began
	j.find() // the race detector reports if this reads what Launch writes
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
