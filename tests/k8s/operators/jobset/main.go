// Ask JobSet's own webhook about a JobSet: jobset NEW.json [OLD.json]. It prints `accepted`, or why not.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"sigs.k8s.io/jobset/api/jobset/v1alpha2"
	"sigs.k8s.io/jobset/pkg/webhooks"
)

func read(path string) *v1alpha2.JobSet {
	text, err := os.ReadFile(path)
	if err != nil {
		panic(err)
	}
	found := &v1alpha2.JobSet{}
	if err := json.Unmarshal(text, found); err != nil {
		panic(err)
	}
	for n := range found.Spec.ReplicatedJobs { // the API server sets the defaults of the CRD before it asks
		if job := &found.Spec.ReplicatedJobs[n]; job.GroupName == "" {
			job.GroupName = "default"
		}
	}
	return found
}

func main() {
	ctx := context.Background()
	webhook, err := webhooks.NewJobSetWebhook(nil)
	if err != nil {
		panic(err)
	}
	next := read(os.Args[1])
	if err := webhook.Default(ctx, next); err != nil {
		panic(err)
	}
	if len(os.Args) > 2 {
		former := read(os.Args[2])
		if err = webhook.Default(ctx, former); err == nil {
			_, err = webhook.ValidateUpdate(ctx, former, next)
		}
	} else {
		_, err = webhook.ValidateCreate(ctx, next)
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("accepted")
}
