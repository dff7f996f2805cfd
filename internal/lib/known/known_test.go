package known_test

import (
	"testing"

	"tare/internal/lib/known"
)

func TestSum(t *testing.T) {
	one, two := int64(1), int64(2)
	if got := known.Sum(&one, known.Minus(&two)); got == nil || *got != -1 || one != 1 || two != 2 {
		t.Errorf("1 - 2 is %v", got)
	}
	if got := known.Sum[float64](); got == nil || *got != 0 {
		t.Errorf("the sum of nothing is %v, want 0", got)
	}
	if got := known.Sum(&one, nil, &two); got != nil {
		t.Errorf("a sum with an unknown part is %d, want nil", *got)
	}
}

func TestOr(t *testing.T) {
	if got := known.Or(new(0.0), -1); got != 0 {
		t.Errorf("0 is known, and got is %g", got)
	}
	if got := known.Or(nil, -1.0); got != -1 {
		t.Errorf("%g for what is not known, want -1", got)
	}
}

func TestAs(t *testing.T) {
	half := func(n int64) float64 { return float64(n) / 2 }
	if got := known.As(new(int64(3)), half); got == nil || *got != 1.5 {
		t.Errorf("half of 3 is %v", got)
	}
	if got := known.As(nil, half); got != nil {
		t.Errorf("half of what is not known is %g, want nil", *got)
	}
}
