package config

import (
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3" // so that JSON can name it
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// TestClusterRefused: what translate takes with a warning, or lets pass, is refused by a proxy, which would not do it.
func TestClusterRefused(t *testing.T) {
	const static = `"load_assignment":{"cluster_name":"c","endpoints":[{"lb_endpoints":[{"endpoint":{"address":` +
		`{"socket_address":{"address":"127.0.0.1","port_value":80}}}}]}]}`
	for json, want := range map[string]string{
		static: "",
		static + `,"lb_policy":"LEAST_REQUEST","least_request_lb_config":{},` +
			`"common_lb_config":{"healthy_panic_threshold":{"value":50}}`: "",
		static + `,"lb_policy":"MAGLEV"`: `cluster "c": lb_policy: is not supported: MAGLEV: ` +
			`endpoints are chosen at random by weight: callers do not keep theirs`,
		static + `,"outlier_detection":{}`: `cluster "c": outlier_detection: is not supported: ` +
			`endpoints that fail are not ejected`,
		static + `,"transport_socket_matches":[{"name":"tls","match":{},"transport_socket":{"name":"tls","typed_config":` +
			`{"@type":"type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext"}}}]`: `cluster "c": ` +
			`transport_socket_matches[0]: is not supported: endpoints that could be reached by TLS are reached without`,
		static + `,"common_http_protocol_options":{"idle_timeout":"1s"}`: `cluster "c": common_http_protocol_options: ` +
			`is not supported`,
		`"type":"ORIGINAL_DST","lb_policy":"CLUSTER_PROVIDED"`: `cluster "c": type: ORIGINAL_DST is not supported`,
	} {
		var m clusterv3.Cluster
		if err := protojson.Unmarshal([]byte(`{"name":"c",`+json+`}`), &m); err != nil {
			t.Fatal(err)
		}
		b, err := proto.Marshal(&m)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if _, err := ParseCluster(b); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s\ngot  %s\nwant %s", json, got, want)
		}
	}
}
