package http

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// echoService is the gRPC service that experiments call. The argument and the result of its only method, Echo, are
// google.protobuf.BytesValue, so it needs no generated code. testdata/echo.proto describes it for other clients.
var echoService = grpc.ServiceDesc{
	ServiceName: "tare.Echo",
	HandlerType: (*any)(nil),
	Methods:     []grpc.MethodDesc{{MethodName: "Echo", Handler: echo}},
	Metadata:    "echo.proto",
}

// echo implements the method for grpc-go's server.
func echo(srv any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
	answer, err := srv.(*answers).to(ctx, func() ([]byte, error) {
		var in wrapperspb.BytesValue
		err := decode(&in)
		return in.GetValue(), err
	})
	if err != nil {
		return nil, err
	}
	return wrapperspb.Bytes(answer), nil
}

// grpcServer adapts grpc-go's server to the server interface.
type grpcServer struct{ *grpc.Server }

func newGRPC(a *answers, secured *tls.Config) grpcServer {
	const framing = 16 // upper bound of the bytes of a message besides its value
	options := []grpc.ServerOption{grpc.MaxConcurrentStreams(maxStreams), grpc.MaxRecvMsgSize(maxEcho + framing)}
	if secured != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(secured)))
	}
	s := grpc.NewServer(options...)
	s.RegisterService(&echoService, a)
	return grpcServer{s}
}

func (s grpcServer) Serve(l net.Listener) error {
	if err := s.Server.Serve(l); err != nil {
		return err
	}
	return http.ErrServerClosed
}

// Close ends calls, connections and Serve.
func (s grpcServer) Close() error {
	s.Stop()
	return nil
}
