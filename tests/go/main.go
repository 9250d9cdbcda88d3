// A client of franz-go, for the cluster suite.
//
// `client ADDRESS USER MECHANISM connect` connects, and prints the error if it cannot.
// `client ADDRESS USER MECHANISM administer` creates, lists and deletes a user, ACLs and quotas, and prints
// what it finds after each step, a line each. The password is in FRANZ_PASSWORD.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

func main() {
	if len(os.Args) != 5 {
		fail(errors.New("usage: client ADDRESS USER MECHANISM connect|administer"))
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(os.Args[1]), kgo.SASL(mechanism(os.Args[3], os.Args[2])))
	check(err)
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	check(client.Ping(ctx))
	if os.Args[4] == "administer" {
		admin := kadm.NewClient(client)
		administerUsers(ctx, admin)
		administerAcls(ctx, admin)
		administerQuotas(ctx, admin)
	}
}

func mechanism(name, user string) sasl.Mechanism {
	password := os.Getenv("FRANZ_PASSWORD")
	switch name {
	case "PLAIN":
		return plain.Auth{User: user, Pass: password}.AsMechanism()
	case "SCRAM-SHA-512":
		return scram.Auth{User: user, Pass: password}.AsSha512Mechanism()
	default:
		return scram.Auth{User: user, Pass: password}.AsSha256Mechanism()
	}
}

// Errors with Kafka's codes print their names.
func fail(err error) {
	var known *kerr.Error
	if errors.As(err, &known) {
		fmt.Fprintln(os.Stderr, known.Message)
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func check(err error) {
	if err != nil {
		fail(err)
	}
}

func administerUsers(ctx context.Context, admin *kadm.Client) {
	show := func() {
		found, err := admin.DescribeUserSCRAMs(ctx)
		check(err)
		for _, user := range found.Sorted() {
			if user.User == "alice" {
				for _, info := range user.CredInfos {
					fmt.Println("user", user.User, info.Mechanism, info.Iterations)
				}
			}
		}
		fmt.Println("users listed")
	}
	altered, err := admin.AlterUserSCRAMs(ctx, nil, []kadm.UpsertSCRAM{
		{User: "alice", Mechanism: kadm.ScramSha256, Iterations: 8192, Password: "alice-password"},
	})
	check(err)
	check(altered.Error())
	show()
	altered, err = admin.AlterUserSCRAMs(ctx, []kadm.DeleteSCRAM{{User: "alice", Mechanism: kadm.ScramSha256}}, nil)
	check(err)
	check(altered.Error())
	show()
}

func administerAcls(ctx context.Context, admin *kadm.Client) {
	rule := func() *kadm.ACLBuilder {
		return kadm.NewACLs().Topics("franz-").ResourcePatternType(kadm.ACLPatternPrefixed).
			Allow("User:alice").AllowHosts("*").Operations(kadm.OpRead, kadm.OpDescribe)
	}
	show := func() {
		found, err := admin.DescribeACLs(ctx, rule())
		check(err)
		for _, result := range found {
			check(result.Err)
			for _, acl := range result.Described {
				fmt.Println("acl", acl.Principal, acl.Permission, acl.Operation, acl.Type, acl.Pattern, acl.Name)
			}
		}
		fmt.Println("acls listed")
	}
	created, err := admin.CreateACLs(ctx, rule())
	check(err)
	for _, each := range created {
		check(each.Err)
	}
	show()
	deleted, err := admin.DeleteACLs(ctx, rule())
	check(err)
	for _, each := range deleted {
		check(each.Err)
	}
	show()
}

func administerQuotas(ctx context.Context, admin *kadm.Client) {
	user := "alice"
	entity := kadm.ClientQuotaEntity{{Type: "user", Name: &user}}
	alter := func(op kadm.AlterClientQuotaOp) {
		altered, err := admin.AlterClientQuotas(ctx, []kadm.AlterClientQuotaEntry{
			{Entity: entity, Ops: []kadm.AlterClientQuotaOp{op}},
		})
		check(err)
		for _, each := range altered {
			check(each.Err)
		}
		found, err := admin.DescribeClientQuotas(ctx, true, []kadm.DescribeClientQuotaComponent{
			{Type: "user", MatchName: &user, MatchType: 0},
		})
		check(err)
		for _, quota := range found {
			fmt.Println("quota", quota.Entity, quota.Values)
		}
		fmt.Println("quotas listed")
	}
	alter(kadm.AlterClientQuotaOp{Key: "producer_byte_rate", Value: 1000000})
	alter(kadm.AlterClientQuotaOp{Key: "producer_byte_rate", Remove: true})
}
