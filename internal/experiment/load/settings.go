package load

import (
	"errors"
	"fmt"
	"time"

	"tare/internal/lib/pace"
	"tare/internal/lib/param"
)

// SpinSetting is a setting of load processes that specs cannot set.
var SpinSetting = param.Setting{Name: "spin", Type: param.TypeDuration, Default: pace.DefaultSpin.String(), Max: 1,
	Doc: "longest wait to spin through before an intended start; 0s for none"}

// SpinOf returns the value of SpinSetting for the options of generators: 0 means the default, negative no spinning.
func SpinOf(v param.Values) time.Duration {
	if _, given := v[SpinSetting.Name]; !given {
		return 0
	}
	if d := v.Duration(SpinSetting.Name); d > 0 {
		return d
	}
	return -1
}

// CheckRate refuses a setting "rate" that contradicts the setting "mode". The argument what names the pieces of work,
// in the plural.
func CheckRate(v param.Values, what string) error {
	switch _, rated := v["rate"]; {
	case v["mode"] == Open && !rated:
		return fmt.Errorf(`an open load needs a "rate", in %s per second`, what)
	case v["mode"] == Closed && rated:
		return errors.New(`"rate" does not apply to a closed load, which goes as fast as it can`)
	}
	return nil
}
