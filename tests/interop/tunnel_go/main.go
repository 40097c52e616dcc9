// Consumes a tunnel with the official daemon and prints one JSON object per line; stops when its input is closed.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/aliyun/aliyun-tablestore-go-sdk/tunnel"
)

var output sync.Mutex

func show(event map[string]interface{}) {
	text, err := json.Marshal(event)
	if err != nil {
		panic(err)
	}
	output.Lock()
	defer output.Unlock()
	fmt.Println(string(text))
}

func process(context *tunnel.ChannelContext, records []*tunnel.Record) error {
	for _, record := range records {
		event := map[string]interface{}{
			"event": "record", "channel": context.ChannelId, "type": record.Type.String(),
			"key": record.PrimaryKey.PrimaryKeys[0].Value, "value": nil, "micros": record.Timestamp,
			"nanos": time.Now().UnixNano(),
		}
		for _, column := range record.Columns {
			if column.Name != nil && *column.Name == "value" && column.Type == tunnel.RCT_Put {
				event["value"] = column.Value
			}
		}
		show(event)
	}
	return nil
}

func setting(name string) string {
	value := os.Getenv(name)
	if value == "" {
		panic("missing " + name)
	}
	return value
}

func seconds(name string) time.Duration {
	number, err := strconv.Atoi(setting(name))
	if err != nil {
		panic(err)
	}
	return time.Duration(number) * time.Second
}

func main() {
	client := tunnel.NewTunnelClient(setting("ENDPOINT"), setting("INSTANCE"), setting("ACCESS_KEY_ID"),
		setting("ACCESS_KEY_SECRET"))
	config := &tunnel.TunnelWorkerConfig{
		HeartbeatInterval: seconds("HEARTBEAT_SECONDS"),
		HeartbeatTimeout:  seconds("TIMEOUT_SECONDS"),
		ProcessorFactory:  &tunnel.SimpleProcessFactory{ProcessFunc: process, CpInterval: 200 * time.Millisecond},
	}
	daemon := tunnel.NewTunnelDaemon(client, setting("TUNNEL_ID"), config)
	ended := make(chan error, 1)
	go func() { ended <- daemon.Run() }()
	show(map[string]interface{}{"event": "started"})
	_, _ = io.Copy(io.Discard, bufio.NewReader(os.Stdin))
	daemon.Close()
	if err := <-ended; err != nil {
		show(map[string]interface{}{"event": "failed", "error": err.Error()})
		os.Exit(1)
	}
	show(map[string]interface{}{"event": "stopped"})
}
