package admission

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"strconv"
)

// Accounts is how many service accounts the pods have, in turn: pods of one deployment share one.
const Accounts = 100

// Namespace is that of all pods.
const Namespace = "shop"

// review is the review of a pod as an API server sends it, with three places that tell one from another. The pod is one
// of a web shop's: two containers with ports, environment, resources, and probes of each kind.
//
//go:embed review.json
var review []byte

// The places in review.
const (
	uidPlace     = "@UID@"
	podPlace     = "@POD@"
	accountPlace = "@ACCOUNT@"
)

// reviews makes the i-th review of a load.
type reviews struct{ parts [][]byte }

func newReviews() (*reviews, error) {
	var compact bytes.Buffer
	if err := json.Compact(&compact, review); err != nil {
		return nil, fmt.Errorf("the review is no JSON: %w", err)
	}
	r := &reviews{}
	rest := compact.Bytes()
	for {
		at, place := len(rest), ""
		for _, p := range []string{uidPlace, podPlace, accountPlace} {
			if i := bytes.Index(rest, []byte(p)); i >= 0 && i < at {
				at, place = i, p
			}
		}
		r.parts = append(r.parts, rest[:at], []byte(place))
		if place == "" {
			return r, nil
		}
		rest = rest[at+len(place):]
	}
}

// account is the service account of the i-th pod.
func account(i int) string { return "account-" + strconv.Itoa(i%Accounts) }

// appendTo appends the i-th review.
func (r *reviews) appendTo(b []byte, i int) []byte {
	for j := 0; j < len(r.parts); j += 2 {
		b = append(b, r.parts[j]...)
		switch string(r.parts[j+1]) {
		case uidPlace:
			b = append(b, uid(i)...)
		case podPlace:
			b = strconv.AppendInt(append(b, "shop-"...), int64(i), 10)
		case accountPlace:
			b = append(b, account(i)...)
		}
	}
	return b
}

// uid is a UUID of the i-th review.
func uid(i int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012x", i) }
