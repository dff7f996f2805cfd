package mapinmap

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/mesh"
	"tare/internal/mesh/store"
	"tare/internal/mesh/store/records/keep"
	"tare/test/storetest"
)

// TestGracePeriodsAreTheKernels compares the counted waits with what the kernel reports about the writing thread: how
// often it slept voluntarily (ru_nvcsw of getrusage), and where (/proc/self/task/TID/stack).
func TestGracePeriodsAreTheKernels(t *testing.T) {
	for _, c := range []struct {
		design store.Design
		want   [3]int // of an insertion, a replacement and a deletion of a cluster
	}{
		{Naive, [3]int{45, 90, 45}},
		{Pooled, [3]int{}},
	} {
		t.Run(c.design.Name, func(t *testing.T) {
			s, err := c.design.Open(store.Options{MaxClusters: 16, MaxListeners: 16, MaxEndpoints: 256})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			a, b := storetest.ClusterLoad(0), storetest.ClusterLoad(1)
			b.Name = a.Name
			asleep := false
			for i, change := range []mesh.Change{{Clusters: []*mesh.Cluster{a}}, {Clusters: []*mesh.Cluster{b}},
				{RemovedClusters: []string{a.Name}}} {
				var work store.Work
				slept, inRCU := watch(t, func() { work, err = s.Apply(context.Background(), change) })
				if err != nil {
					t.Fatal(err)
				}
				want := c.want[i]
				if keep.LookupsWait() {
					want *= 3
				}
				if work.GracePeriods != want {
					t.Errorf("change %d: %d grace periods are counted, not %d", i, work.GracePeriods, want)
				}
				// A page fault or Go's runtime may make the writer sleep more often, especially on a busy machine, and
				// an expedited grace period can be more than one wait.
				if slept < want || slept > 3*want+20 {
					t.Errorf("change %d: %d grace periods are counted, and the writer slept %d times", i, work.GracePeriods, slept)
				}
				asleep = asleep || inRCU
			}
			if asleep != (c.want[0] > 0) {
				t.Errorf("the writer was seen asleep in synchronize_rcu: %v", asleep)
			}
		})
	}
}

// watch runs f on a separate thread, and returns how often that thread slept, and whether it was seen sleeping in
// synchronize_rcu.
func watch(t *testing.T, f func()) (slept int, inRCU bool) {
	t.Helper()
	thread, done, stop := make(chan int), make(chan int64), make(chan struct{})
	go func() {
		runtime.LockOSThread()
		var before, after unix.Rusage
		unix.Getrusage(unix.RUSAGE_THREAD, &before)
		thread <- unix.Gettid()
		f()
		unix.Getrusage(unix.RUSAGE_THREAD, &after)
		done <- after.Nvcsw - before.Nvcsw
		<-stop
	}()
	stack := fmt.Sprintf("/proc/self/task/%d/stack", <-thread)
	defer close(stop)
	for {
		text, err := os.ReadFile(stack)
		if err != nil {
			t.Skip("needs /proc/PID/stack")
		}
		inRCU = inRCU || bytes.Contains(text, []byte("synchronize_rcu"))
		select {
		case n := <-done:
			return int(n), inRCU
		case <-time.After(time.Millisecond):
		}
	}
}
