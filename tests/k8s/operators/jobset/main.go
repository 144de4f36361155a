// JobSet's own webhook and controller about a JobSet:
//
//	jobset ask NEW.json [OLD.json]    print `accepted`, or why the webhook refuses it (in place of an old one)
//	jobset run NEW.json SERVICES.json  print the Jobs and Services that the controller makes, beside these Services
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgo "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/jobset/api/jobset/v1alpha2"
	"sigs.k8s.io/jobset/pkg/constants"
	"sigs.k8s.io/jobset/pkg/controllers"
	"sigs.k8s.io/jobset/pkg/webhooks"
)

var ctx = context.Background()

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func read(path string, into any) {
	text, err := os.ReadFile(path)
	must(err)
	must(json.Unmarshal(text, into))
}

type webhook interface {
	Default(context.Context, runtime.Object) error
}

// A JobSet with the defaults of its CRD, which the API server sets, and of the webhook.
func jobset(path string, hook webhook) *v1alpha2.JobSet {
	found := &v1alpha2.JobSet{}
	read(path, found)
	for n := range found.Spec.ReplicatedJobs {
		if job := &found.Spec.ReplicatedJobs[n]; job.GroupName == "" {
			job.GroupName = "default"
		}
	}
	must(hook.Default(ctx, found))
	return found
}

func run(asked *v1alpha2.JobSet, services []corev1.Service) {
	scheme := runtime.NewScheme()
	must(clientgo.AddToScheme(scheme))
	must(v1alpha2.AddToScheme(scheme))
	asked.UID = "1"
	objects := []client.Object{asked}
	for n := range services {
		objects = append(objects, &services[n])
	}
	owner := func(object client.Object) []string {
		if found := metav1.GetControllerOf(object); found != nil {
			return []string{found.Name}
		}
		return nil
	}
	known := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithStatusSubresource(asked).
		WithIndex(&batchv1.Job{}, constants.JobOwnerKey, owner).Build()
	controller := controllers.NewJobSetReconciler(known, scheme, record.NewFakeRecorder(100))
	_, err := controller.Reconcile(ctx, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(asked)})
	must(err)
	var jobs batchv1.JobList
	var all corev1.ServiceList
	must(known.List(ctx, &jobs))
	must(known.List(ctx, &all))
	text, err := json.Marshal(map[string]any{"jobs": jobs.Items, "services": all.Items})
	must(err)
	fmt.Println(string(text))
}

func main() {
	hook, err := webhooks.NewJobSetWebhook(nil)
	must(err)
	next := jobset(os.Args[2], hook)
	switch {
	case os.Args[1] == "run":
		var services []corev1.Service
		read(os.Args[3], &services)
		run(next, services)
		return
	case len(os.Args) > 3:
		_, err = hook.ValidateUpdate(ctx, jobset(os.Args[3], hook), next)
	default:
		_, err = hook.ValidateCreate(ctx, next)
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("accepted")
}
