package plan

import (
	"errors"
	"math"
	"slices"

	"tare/internal/lib/quantity"
)

// armOf adds up what the models of an arm predict.
//
// The total of a metric comes from the line of the whole arm alone, even if components have lines too, because the
// components may not hold all of the total: one without values has no line. For sums over metrics, the ends of
// prediction intervals are added. If errors are jointly normal, such a sum covers at least as often as each interval,
// however the errors are correlated.
func armOf(name string, uses []use, unplanned []Unplanned, ask Ask) Arm {
	a := Arm{Arm: name, Parts: []Part{}, Unplanned: unplanned}
	broken := map[string]bool{} // units whose total is unknown
	for _, u := range unplanned {
		broken[u.unit] = true
	}
	totals := map[string]*Amount{}
	var metrics []string
	for _, u := range uses {
		if !slices.Contains(metrics, u.model.Metric) {
			metrics = append(metrics, u.model.Metric)
		}
	}
	for _, metric := range metrics {
		var whole *Forecast
		modelled, unit, of := false, "", ""
		for _, u := range uses {
			if u.model.Metric != metric {
				continue
			}
			unit, of = u.unit, u.source.Run.Defined().Of(metric).Plan
			modelled = modelled || u.model.Component == ""
			f, err := u.forecast()
			switch {
			case err != nil:
				a.Unplanned = append(a.Unplanned, Unplanned{u.component, metric, err.Error(), unit})
			case u.model.Component != "":
				a.add(u, f)
			default:
				whole = f
				if !hasComponents(uses, metric) {
					a.add(u, f)
				}
			}
		}
		if !modelled {
			a.Unplanned = append(a.Unplanned, Unplanned{of, metric, noWhole, unit})
		}
		if whole == nil {
			broken[unit] = true
			continue
		}
		if totals[unit] == nil {
			totals[unit] = &Amount{}
		}
		*totals[unit] = totals[unit].plus(whole.Amount)
	}
	total := func(unit string) *Amount {
		if broken[unit] {
			return nil
		}
		if t := totals[unit]; t != nil {
			return new(t.times(ask.Copies))
		}
		return nil
	}
	a.CPUs, a.Memory = total(quantity.CPUs), total(quantity.Bytes)
	if a.CPUs != nil && a.Memory != nil {
		if ask.Node != nil {
			a.Node = ask.Node.hold(*a.CPUs, *a.Memory)
		}
		if ask.Prices != nil {
			a.PerHour = new(a.CPUs.times(ask.Prices.CPU).plus(a.Memory.times(ask.Prices.Memory / (1 << 30))))
		}
	}
	return a
}

func hasComponents(uses []use, metric string) bool {
	return slices.ContainsFunc(uses, func(u use) bool { return u.model.Metric == metric && u.model.Component != "" })
}

// add adds the forecast of one cost to its component. It leaves out a forecast whose value and interval are 0.
func (a *Arm) add(u use, f *Forecast) {
	if f.Amount == (Amount{}) {
		return
	}
	i := slices.IndexFunc(a.Parts, func(p Part) bool { return p.Component == u.component })
	if i < 0 {
		i = len(a.Parts)
		a.Parts = append(a.Parts, Part{Component: u.component})
	}
	if u.unit == quantity.CPUs {
		a.Parts[i].CPUs = f
	} else {
		a.Parts[i].Memory = f
	}
}

// forecast returns the prediction of the model, or the reason why the model is unsuitable for planning. A suitable
// model is a line, or nearly a line if the levels that were asked for are within its range.
func (u use) forecast() (*Forecast, error) {
	if u.model.Withheld != "" {
		return nil, errors.New(u.model.Withheld)
	}
	if u.unit == quantity.CPUs && u.model.Unpaced() {
		return nil, errors.New("its load had no rate to keep to, so the CPUs are those of its speed, and no demand")
	}
	v, err := u.model.Predict(u.levels)
	switch {
	case err != nil && !u.model.Linear:
		return nil, errors.New("it is not shown to be a line: " + u.model.Test)
	case err != nil:
		return nil, err
	case v.Value < 0:
		return nil, errors.New("the line is below 0 there")
	}
	f := &Forecast{
		Amount: Amount{v.Value, max(0, *v.Lo), *v.Hi}, Metric: u.model.Metric, Experiment: u.source.Run.Experiment,
		Run: u.source.Dir, Machine: machine(u.source.Run), HeldoutError: u.model.HeldoutError, Range: u.model.ValidRange,
	}
	if !u.model.Linear {
		f.Bent = u.model.Test
	}
	if !u.charged {
		return f, nil
	}
	step := 1.0 / 1000
	if u.unit == quantity.Bytes {
		step = 1 << 20
	}
	f.Request = new(math.Ceil(f.Hi/step*(1-1e-12)) * step) // rounding errors must not add a step
	return f, nil
}

func (a Amount) plus(b Amount) Amount { return Amount{a.Value + b.Value, a.Lo + b.Lo, a.Hi + b.Hi} }

func (a Amount) times(by float64) Amount { return Amount{a.Value * by, a.Lo * by, a.Hi * by} }

// hold returns how many nodes hold the amounts, if these can be spread over nodes as needed.
func (s Size) hold(cpus, memory Amount) *Need {
	n := &Need{Size: s, Bound: "cpu"}
	if memory.Hi/s.MemoryBytes > cpus.Hi/s.CPUs {
		n.Bound = "memory"
	}
	n.Count = max(1, math.Ceil(max(cpus.Hi/s.CPUs, memory.Hi/s.MemoryBytes)))
	n.AtMean = max(1, math.Ceil(max(cpus.Value/s.CPUs, memory.Value/s.MemoryBytes)))
	return n
}
