// A client by Go's net/http that asks without a pause to speak of, for stories: steady_client URL CA VERSION, with a
// version of "1" or "2".
//
// Says "goes on" for each fifty answers until its standard input ends; then how many requests were answered and how
// many connections that took, and a line for each way in which one failed. Bodies cannot be sent again, so that Go
// repeats none of them by itself.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	threads = 4
	length  = 20_000
)

var (
	lock   sync.Mutex
	counts = map[string]int{}
)

func note(what string) {
	lock.Lock()
	defer lock.Unlock()
	counts[what]++
	if what == "answered" && counts[what]%50 == 0 {
		fmt.Println("goes on")
	}
}

func main() {
	url, version := os.Args[1], os.Args[3]
	pem, err := os.ReadFile(os.Args[2])
	roots := x509.NewCertPool()
	if err != nil || !roots.AppendCertsFromPEM(pem) {
		panic("no CA")
	}
	transport := &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			note("connections")
			return (&net.Dialer{}).DialContext(ctx, network, address)
		},
		TLSClientConfig:     &tls.Config{RootCAs: roots},
		ForceAttemptHTTP2:   version == "2",
		MaxIdleConnsPerHost: threads,
	}
	if version == "1" {
		transport.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
	}
	client := &http.Client{Transport: transport, Timeout: 20 * time.Second}
	var stop int32
	go func() {
		io.Copy(io.Discard, os.Stdin)
		atomic.StoreInt32(&stop, 1)
	}()
	var all sync.WaitGroup
	for thread := 0; thread < threads; thread++ {
		all.Add(1)
		go func() {
			defer all.Done()
			for round := 0; atomic.LoadInt32(&stop) == 0; round++ {
				ask := []func(*http.Client, string, string) error{post, get}[round%2]
				if err := ask(client, url, "HTTP/"+version); err != nil {
					note(fmt.Sprintf("failed: %v", err))
				} else {
					note("answered")
				}
				time.Sleep(5 * time.Millisecond)
			}
		}()
	}
	all.Wait()
	for what, count := range counts {
		fmt.Println(count, what)
	}
}

// A body that Go can read once only.
type once struct{ io.Reader }

func post(client *http.Client, url, proto string) error {
	request, err := http.NewRequest("POST", url+"/sum", once{strings.NewReader(strings.Repeat("x", length))})
	if err != nil {
		return err
	}
	request.ContentLength = length
	return answered(client, request, proto, func(body string) bool {
		return strings.HasPrefix(body, fmt.Sprintf("POST %d %d ", length, length))
	})
}

func get(client *http.Client, url, proto string) error {
	request, err := http.NewRequest("GET", fmt.Sprintf("%s/bytes?%d", url, length), nil)
	if err != nil {
		return err
	}
	return answered(client, request, proto, func(body string) bool { return len(body) == length })
}

func answered(client *http.Client, request *http.Request, proto string, fits func(string) bool) error {
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != 200 || !strings.HasPrefix(response.Proto, proto) || !fits(string(body)) {
		return fmt.Errorf("%s %s with %d bytes", response.Proto, response.Status, len(body))
	}
	return nil
}
