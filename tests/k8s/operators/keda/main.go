// Ask KEDA's own webhook about a ScaledObject: keda ask NEW.json EXISTING.json. EXISTING holds a list of the Deployments and
// HorizontalPodAutoscalers of the cluster. It prints `accepted`, or why not.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/kedacore/keda/v2/apis/keda/v1alpha1"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/meta/testrestmapper"
	"k8s.io/apimachinery/pkg/runtime"
	clientgo "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// What the webhook takes of a manager: a client that knows the objects, and their kinds.
type cluster struct {
	manager.Manager
	objects client.Client
	mapper  meta.RESTMapper
}

func (c cluster) GetClient() client.Client       { return c.objects }
func (c cluster) GetRESTMapper() meta.RESTMapper { return c.mapper }

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

func connect(c cluster) {
	defer func() { _ = recover() }() // the client is known by then; there is no server to register at
	_ = (&v1alpha1.ScaledObject{}).SetupWebhookWithManager(c, false)
}

func main() {
	scheme := runtime.NewScheme()
	must(clientgo.AddToScheme(scheme))
	must(v1alpha1.AddToScheme(scheme))
	var texts []json.RawMessage
	read(os.Args[3], &texts)
	objects := []client.Object{}
	for _, text := range texts {
		var about struct{ Kind string }
		must(json.Unmarshal(text, &about))
		var object client.Object = &autoscalingv2.HorizontalPodAutoscaler{}
		if about.Kind == "Deployment" {
			object = &appsv1.Deployment{}
		}
		must(json.Unmarshal(text, object))
		objects = append(objects, object)
	}
	known := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()
	connect(cluster{objects: known, mapper: testrestmapper.TestOnlyStaticRESTMapper(scheme)})
	asked, dry := &v1alpha1.ScaledObject{}, false
	read(os.Args[2], asked)
	if _, err := asked.ValidateCreate(&dry); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("accepted")
}
