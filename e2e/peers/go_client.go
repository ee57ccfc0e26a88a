// A client of HTTP/2 by Go's net/http, for stories: go_client STORY URL CA.
//
// Says a line for each thing that was as it should be, with how often it was, and "failed ..." for each that was not.
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"os"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const large = 8_000_000

type client struct {
	*http.Client
	url string

	lock   sync.Mutex
	counts map[string]int
}

// A kind of request: what it asks for, and what the answer has to be.
type kind struct {
	name string
	ask  func(*client) error
}

var (
	small = []kind{{"get", get}, {"head", head}, {"known", known}, {"unknown", unknown}, {"trailers", trailers},
		{"continued", continued}, {"refused", refused}, {"cancelled", cancelled}}
	big = []kind{{"download", download}, {"upload", upload}, {"unknown upload", unknownUpload}}
	// What may come at any moment, and is never to fail.
	steady = []kind{{"get", get}, {"known", known}, {"unknown", unknown}, {"slow", slow}, {"bytes", someBytes}}
)

func main() {
	c := &client{url: os.Args[2], counts: map[string]int{}}
	c.Client = &http.Client{Transport: transport(c, os.Args[3])}
	stories := map[string]func(*client){"mixed": mixed, "cancel": cancel, "pause": pause, "load": load}
	stories[os.Args[1]](c)
	var lines []string
	for what, count := range c.counts {
		lines = append(lines, fmt.Sprintln(count, what))
	}
	sort.Strings(lines)
	fmt.Print(strings.Join(lines, ""))
}

func transport(c *client, ca string) *http.Transport {
	pem, err := os.ReadFile(ca)
	roots := x509.NewCertPool()
	if err != nil || !roots.AppendCertsFromPEM(pem) {
		panic("no CA")
	}
	return &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			c.note("connections")
			return (&net.Dialer{}).DialContext(ctx, network, address)
		},
		TLSClientConfig:       &tls.Config{RootCAs: roots},
		ForceAttemptHTTP2:     true,
		ExpectContinueTimeout: time.Minute,
	}
}

func (c *client) note(what string) {
	c.lock.Lock()
	defer c.lock.Unlock()
	c.counts[what]++
}

// try asks for something of a kind, and notes what came of it.
func (c *client) try(k kind) {
	if err := k.ask(c); err != nil {
		c.note(fmt.Sprintf("failed %s: %v", k.name, err))
	} else {
		c.note(k.name)
	}
}

// setting changes a request before it goes out.
type setting func(*http.Request)

type got = *http.Response

// send does a request of HTTP/2 and notes by which protocol the server got it.
func (c *client) send(ctx context.Context, method, path string, body io.Reader, setup ...setting) (got, error) {
	request, err := http.NewRequestWithContext(ctx, method, c.url+path, body)
	if err != nil {
		return nil, err
	}
	for _, set := range setup {
		set(request)
	}
	response, err := c.Do(request)
	if err != nil {
		return nil, err
	}
	if response.ProtoMajor != 2 {
		return nil, errors.New(response.Proto)
	}
	c.note("by " + response.Header.Get("X-Proto"))
	return response, nil
}

// answer is all of a response that has to have this status.
func (c *client) answer(status int, response got, err error) (string, error) {
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != status {
		err = fmt.Errorf("%s: %s", response.Status, body)
	}
	return string(body), err
}

func expect(what any, found any, err error) error {
	if err == nil && what != found {
		err = fmt.Errorf("%v instead of %v", found, what)
	}
	return err
}

// content is the server's /bytes, and what is sent to /sum.
func content(length int) []byte {
	all := make([]byte, length)
	for index := range all {
		all[index] = byte(uint32(index) * 2654435761 >> 13)
	}
	return all
}

func get(c *client) error {
	var hints int32
	ctx := httptrace.WithClientTrace(context.Background(), &httptrace.ClientTrace{
		Got1xxResponse: func(code int, _ textproto.MIMEHeader) error { atomic.AddInt32(&hints, 1); return nil },
	})
	response, err := c.send(ctx, "GET", "/hello", nil)
	text, err := c.answer(200, response, err)
	return expect("hello\n 1", fmt.Sprint(text, " ", atomic.LoadInt32(&hints)), err)
}

func head(c *client) error {
	response, err := c.send(context.Background(), "HEAD", "/bytes?4711", nil)
	text, err := c.answer(200, response, err)
	if err != nil {
		return err
	}
	return expect("4711 ", fmt.Sprint(response.ContentLength, " ", text), nil)
}

// post sends a body, whose length the server is told or not, and has it summed up there.
func (c *client) post(body []byte, announced int, setup ...setting) (got, error) {
	var from io.Reader = bytes.NewReader(body)
	if announced < 0 {
		from = io.MultiReader(from)
	}
	response, err := c.send(context.Background(), "POST", "/sum", from, setup...)
	text, err := c.answer(200, response, err)
	return response, expect(fmt.Sprintf("POST %d %d %x\n", len(body), announced, sha256.Sum256(body)), text, err)
}

func known(c *client) error {
	_, err := c.post(content(700), 700)
	return err
}

func unknown(c *client) error {
	_, err := c.post(content(70_000), -1)
	return err
}

func upload(c *client) error {
	_, err := c.post(content(large), large)
	return err
}

func unknownUpload(c *client) error {
	_, err := c.post(content(large), -1)
	return err
}

func trailers(c *client) error {
	response, err := c.post(content(5_000), -1, func(r *http.Request) {
		r.Trailer = http.Header{"X-Tell": {"as it was"}}
	})
	if err != nil {
		return err
	}
	return expect("as it was", response.Trailer.Get("X-Told"), nil)
}

// continued keeps its body until the server wants it.
func continued(c *client) error {
	var wanted int32
	_, err := c.post(content(9_000), 9_000, func(r *http.Request) {
		r.Header.Set("Expect", "100-continue")
		trace := &httptrace.ClientTrace{Got100Continue: func() { atomic.AddInt32(&wanted, 1) }}
		*r = *r.WithContext(httptrace.WithClientTrace(r.Context(), trace))
	})
	return expect(int32(1), atomic.LoadInt32(&wanted), err)
}

// untouched is a body that nobody is to read.
type untouched struct{ reads int32 }

func (u *untouched) Read([]byte) (int, error) {
	atomic.AddInt32(&u.reads, 1)
	return 0, io.EOF
}

// refused is told before its body was sent that nobody wants it.
func refused(c *client) error {
	body := &untouched{}
	response, err := c.send(context.Background(), "POST", "/refuse", body, func(r *http.Request) {
		r.Header.Set("Expect", "100-continue")
		r.ContentLength = 9_000
	})
	text, err := c.answer(403, response, err)
	return expect("not this\n 0", fmt.Sprint(text, " ", atomic.LoadInt32(&body.reads)), err)
}

func (c *client) bytes(length int) error {
	response, err := c.send(context.Background(), "GET", fmt.Sprint("/bytes?", length), nil)
	text, err := c.answer(200, response, err)
	return expect(sha256.Sum256(content(length)), sha256.Sum256([]byte(text)), err)
}

func download(c *client) error {
	return c.bytes(large)
}

func someBytes(c *client) error {
	return c.bytes(200_000)
}

func slow(c *client) error {
	response, err := c.send(context.Background(), "GET", "/slow?300", nil)
	text, err := c.answer(200, response, err)
	return expect("begun done\n", text, err)
}

// cancelled ends a download in its midst by its context.
func cancelled(c *client) error {
	ctx, end := context.WithCancel(context.Background())
	defer end()
	response, err := c.send(ctx, "GET", "/endless", nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if _, err := io.CopyN(io.Discard, response.Body, 20_000); err != nil {
		return err
	}
	end()
	if _, err = io.Copy(io.Discard, response.Body); errors.Is(err, context.Canceled) {
		return nil
	}
	return fmt.Errorf("it ended with %v", err)
}

// atOnce makes requests of these kinds in turn, all at the same time.
func (c *client) atOnce(count int, kinds []kind) {
	var all sync.WaitGroup
	defer all.Wait()
	for index := 0; index < count; index++ {
		all.Add(1)
		go func(k kind) {
			defer all.Done()
			c.try(k)
		}(kinds[index%len(kinds)])
	}
}

// mixed is 201 requests of every kind: the first alone, for it brings the server's settings, and then all at once.
func mixed(c *client) {
	c.try(small[0])
	var all sync.WaitGroup
	defer all.Wait()
	all.Add(1)
	go func() {
		defer all.Done()
		c.atOnce(8, append(big, big[0]))
	}()
	c.atOnce(192, small)
}

// cancel ends twice 200 downloads, which are more than the engine takes of streams that were reset without an answer.
func cancel(c *client) {
	c.try(small[0])
	for round := 0; round < 2; round++ {
		c.atOnce(200, []kind{{"cancelled", cancelled}})
		c.atOnce(50, []kind{{"get", get}, {"known", known}, {"bytes", someBytes}})
	}
}

// pause reads a bit of a download, makes other requests for two seconds, and reads on.
func pause(c *client) {
	c.try(kind{"paused", func(c *client) error {
		const length = 30_000_000
		response, err := c.send(context.Background(), "GET", fmt.Sprint("/bytes?", length), nil)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		hash := sha256.New()
		if _, err := io.CopyN(hash, response.Body, 100_000); err != nil {
			return err
		}
		for begun := time.Now(); time.Since(begun) < 2*time.Second; time.Sleep(20 * time.Millisecond) {
			c.try(small[0])
		}
		_, err = io.Copy(hash, response.Body)
		return expect(fmt.Sprintf("%x", sha256.Sum256(content(length))), fmt.Sprintf("%x", hash.Sum(nil)), err)
	}})
}

// load makes requests that are never to fail, on eight threads, until its standard input ends.
func load(c *client) {
	var stop int32
	go func() {
		io.Copy(io.Discard, os.Stdin)
		atomic.StoreInt32(&stop, 1)
	}()
	var all sync.WaitGroup
	defer all.Wait()
	for thread := 0; thread < 8; thread++ {
		all.Add(1)
		go func(next int) {
			defer all.Done()
			for ; atomic.LoadInt32(&stop) == 0; next++ {
				c.try(steady[next%len(steady)])
				time.Sleep(time.Millisecond)
			}
		}(thread)
	}
}
