package admission

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"strconv"
	"sync"
)

// Accounts is the number of service accounts, which pods use in turn. Pods share an account, as the pods of one
// Deployment do.
const Accounts = 100

// Namespace is the namespace of all pods.
const Namespace = "shop"

// review is the review of a pod as an API server sends it, with three placeholders that make reviews differ. The pod
// belongs to a web shop and has two containers with ports, environment, resources, and probes of each kind.
//
//go:embed review.json
var review []byte

// compact returns review without white space, as it is sent.
var compact = sync.OnceValue(func() []byte {
	var b bytes.Buffer
	if err := json.Compact(&b, review); err != nil {
		panic(err) // the file is invalid, and no load could start
	}
	return b.Bytes()
})

// reviewOf returns the i-th review.
func reviewOf(i int) []byte {
	text := bytes.ReplaceAll(compact(), []byte("@UID@"), []byte(uid(i)))
	text = bytes.ReplaceAll(text, []byte("@POD@"), []byte(podName(i)))
	return bytes.ReplaceAll(text, []byte("@ACCOUNT@"), []byte(account(i)))
}

func podName(i int) string { return "shop-" + strconv.Itoa(i) }

// account returns the service account of the i-th pod.
func account(i int) string { return "account-" + strconv.Itoa(i%Accounts) }

// uid returns a UUID for the i-th review.
func uid(i int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012x", i) }
