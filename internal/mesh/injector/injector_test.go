package injector

import (
	"context"
	"testing"
	"time"

	"tare/internal/experiment/load"
	"tare/internal/experiment/role"
	"tare/internal/lib/pace"
	"tare/internal/mesh/admission"
	"tare/test/serving"
)

func TestReviews(t *testing.T) {
	for name, c := range map[string]struct {
		rate         float64
		certificates bool
	}{"open": {rate: 200}, "closed": {}, "certificates": {rate: 50, certificates: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := serving.Start(t, func(ctx context.Context, ready func(admission.Webhook) error) error {
				return serve(ctx, c.certificates, ready)
			})
			l, err := admission.Prepare(t.Context(), admission.Options{Rate: c.rate, Arrivals: pace.Constant, AtOnce: 4,
				Timeout: 30 * time.Second, Drain: 30 * time.Second}, w)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			r, err := l.Run(t.Context(), role.Schedule{Begin: pace.Now() + int64(10*time.Millisecond),
				Warmup: int64(100 * time.Millisecond), Duration: int64(500 * time.Millisecond)})
			if err != nil {
				t.Fatal(err)
			}
			if r.Done == 0 || r.Done != r.Intended || len(r.Errors) > 0 || r.Unfinished != 0 {
				t.Errorf("%+v", r)
			}
			if want := int64(c.rate / 2); c.rate > 0 && r.Intended != want {
				t.Errorf("%d reviews were intended, not %d", r.Intended, want)
			}
			h, err := r.Histogram(load.Latency)
			if err != nil || h.TotalCount() != r.Done {
				t.Errorf("%v, times of %d of %d reviews", err, h.TotalCount(), r.Done)
			}
			if n := r.Counts["certificates"]; c.certificates && int64(n) != r.Done {
				t.Errorf("%g certificates for %d pods", n, r.Done)
			}
		})
	}
}
