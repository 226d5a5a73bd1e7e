#!/usr/bin/env bash
# A kind cluster with Slurm, podbridge and a first Job, or the same on a cluster that exists: ./hack/kind.sh --help
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$checkout"

usage="usage: hack/kind.sh [OPTIONS] [-- HELM ARGUMENTS]

Creates a kind cluster, loads the images, and installs a test Slurm, the chart and a managed namespace; then runs a Job.

  --core               stop after the chart: no managed namespace, no Job
  --pools              add a NATS server for a remote pool, alpha (docs/admins/pools.md)
  --kueue              add Kueue, in the version that the tests use, and run the Job in a queue for Slurm's nodes
  --kueue-manifests FILE  with --kueue or --delete: the manifests of Kueue (those of its release, from the network)
  --recreate           delete the cluster first
  --delete             delete the cluster (with --existing-cluster: what this script installed) and stop
  --existing-cluster   use the current context of kubectl, and the nodes with the label
                       scheduler.slinky.slurm.net/slurm-bridge=worker: podbridge evicts the pods of others from them
  --load COMMAND       with --existing-cluster: the command that imports an image archive, whose path is appended;
                       without it, the nodes must be able to pull the images
  --no-services        the cluster has no kube-proxy: Slurm uses the network of its node, and podbridge its address
  --name NAME          name of the kind cluster (podbridge)
  --node-image IMAGE   node image of the kind cluster (that of kind's release)
  --image-archive FILE archive of podbridge's image (by default built by hack/image.sh)
  --slurm-archive FILE the same for the test Slurm
  --check              only check the tools"

core='' pools='' kueue='' recreate='' delete='' existing='' load='' services=yes name=podbridge node_image='' check=''
kueue_manifests='' image_archive='' slurm_archive=''
while [[ $# -gt 0 ]]; do
    case $1 in
    --core) core=yes ;;
    --pools) pools=yes ;;
    --kueue) kueue=yes ;;
    --recreate) recreate=yes ;;
    --delete) delete=yes ;;
    --existing-cluster) existing=yes ;;
    --no-services) services='' ;;
    --check) check=yes ;;
    --load) load=${2:?"$usage"} && shift ;;
    --kueue-manifests) kueue_manifests=${2:?"$usage"} && shift ;;
    --name) name=${2:?"$usage"} && shift ;;
    --node-image) node_image=${2:?"$usage"} && shift ;;
    --image-archive) image_archive=${2:?"$usage"} && shift ;;
    --slurm-archive) slurm_archive=${2:?"$usage"} && shift ;;
    --help | -h) echo "$usage" && exit 0 ;;
    --) shift && break ;;
    *) say "error: unknown option $1" && say "$usage" && exit 2 ;;
    esac
    shift
done

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
kueue_version=$(sed -n 's|^.*sigs.k8s.io/kueue \(v[0-9.]*\).*$|\1|p' hack/tools/kueue/go.mod) # that of the tests
kueue_manifests=${kueue_manifests:-https://github.com/kubernetes-sigs/kueue/releases/download/$kueue_version/manifests.yaml}
worker=scheduler.slinky.slurm.net/slurm-bridge=worker
missing=()

need() {
    command -v "$1" >/dev/null || missing+=("$1: $2")
}

need kubectl "https://kubernetes.io/docs/tasks/tools/ (on a local cluster: source DIR/env)"
need helm "https://helm.sh/docs/intro/install/, or go install helm.sh/helm/v3/cmd/helm@latest"
if [[ -z $existing ]]; then
    need kind "go install sigs.k8s.io/kind@latest"
    if docker info >/dev/null 2>&1; then
        : # kind uses it by default
    elif podman info >/dev/null 2>&1; then
        export KIND_EXPERIMENTAL_PROVIDER=${KIND_EXPERIMENTAL_PROVIDER:-podman}
    else
        missing+=("docker or podman: a container engine whose daemon answers: apt install docker.io, or podman")
    fi
fi
if [[ ${#missing[@]} -gt 0 ]]; then
    say "error: these tools are missing:"
    printf '  %s\n' "${missing[@]}" >&2
    exit 1
fi
[[ -z $check ]] || exit 0

created=podbridge/created-by=kind.sh

uninstall() {
    local failed=''
    # pods first: only a podbridge that runs removes their finalizer
    if kubectl get namespaces --selector "$created" --output name | grep -x namespace/slurm-bridge; then
        if ! kubectl delete namespace slurm-bridge --timeout 120s; then
            say "error: podbridge did not release the pods of slurm-bridge: see kubectl logs -n podbridge" \
                "deployment/podbridge-controllers; if podbridge does not run, remove the finalizers of these pods"
            return 1
        fi
    fi
    kubectl delete job hello --namespace slurm-bridge --ignore-not-found --cascade foreground --timeout 60s
    kubectl delete --filename hack/slurm/queue.yaml --ignore-not-found || true # no CRD
    helm uninstall podbridge --namespace podbridge --ignore-not-found --wait
    kubectl delete deployment,service slurm --namespace slurm --ignore-not-found
    kubectl taint nodes --all slinky.slurm.net/managed-node- || true # "not found": nodes that Slurm did not manage
    kubectl label namespace slurm bridge.vk.io/guarded-nodes- || true
    if kubectl get namespaces --selector "$created" --output name | grep -x namespace/kueue-system; then
        # Kueue's objects first: only a Kueue that runs removes their finalizers
        kubectl delete workloads.kueue.x-k8s.io,localqueues,clusterqueues,resourceflavors --all --all-namespaces \
            --timeout 60s || true # no CRDs
        kubectl delete --ignore-not-found --filename "$kueue_manifests" --timeout 120s || failed=yes
    fi
    kubectl delete namespace --selector "$created" --wait=false
    if [[ -n $failed ]]; then
        say "error: Kueue was not deleted completely: remove the finalizers of its objects that are left"
        return 1
    fi
}

if [[ -n $delete || -n $recreate ]]; then
    if [[ -n $existing ]]; then uninstall; else kind delete cluster --name "$name"; fi
    [[ -z $delete ]] || exit 0
    # a namespace that is being deleted accepts no new objects
    [[ -z $existing ]] || kubectl wait --for delete namespace --selector "$created" --timeout 120s
fi

# --- the cluster ------------------------------------------------------------------------------------------------------
if [[ -z $existing ]] && ! kind get clusters 2>/dev/null | grep -qx "$name"; then
    kind create cluster --name "$name" ${node_image:+--image "$node_image"} --wait 120s --config - <<END
kind: Cluster
apiVersion: kind.x-k8s.io/v1alpha4
nodes:
  - role: control-plane
  - role: worker
  - {role: worker, labels: {scheduler.slinky.slurm.net/slurm-bridge: worker}}
  - {role: worker, labels: {scheduler.slinky.slurm.net/slurm-bridge: worker}}
END
fi
[[ -n $existing ]] || kubectl config use-context "kind-$name"

# --- the images -------------------------------------------------------------------------------------------------------
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
import() {
    if [[ -n $existing ]]; then $load "$1"; else kind load image-archive --name "$name" "$1"; fi
}
if [[ -z $existing || -n $load ]]; then
    if [[ -z $image_archive ]]; then
        image_archive=$folder/podbridge.tar
        ./hack/image.sh --output "$image_archive"
    fi
    if [[ -z $slurm_archive ]]; then
        slurm_archive=$folder/slurm.tar
        ./hack/image.sh --slurm --output "$slurm_archive"
    fi
    import "$image_archive"
    import "$slurm_archive"
fi

digest() {
    # the tag of an image stays the same; as an annotation of its pods, the digest replaces them when the image changes
    [[ -z $1 ]] || sha256sum "$1" | cut -c1-16
}

# --- Slurm ------------------------------------------------------------------------------------------------------------
nodes=$(kubectl get nodes --selector "$worker" --output 'jsonpath={.items[*].metadata.name}')
if [[ -z $nodes && -n $existing ]]; then
    say "error: no node has the label $worker"
    say "podbridge evicts the pods of others from the nodes that Slurm manages; choose nodes: kubectl label node NAME $worker"
    exit 1
elif [[ -z $nodes ]]; then
    nodes=$(kubectl get nodes --selector '!node-role.kubernetes.io/control-plane' --output 'jsonpath={.items[*].metadata.name}')
fi
ensure_namespace() {
    kubectl get namespace "$1" >/dev/null 2>&1 || {
        kubectl create namespace "$1"
        kubectl label namespace "$1" "$created"
    }
}
ensure_namespace slurm
ensure_namespace podbridge
arguments=()
read -r -a managed <<<"$nodes"
if [[ $(kubectl get nodes --output name | wc -l) -le ${#managed[@]} ]]; then
    # Slurm manages every node, so podbridge and Slurm run on nodes that Slurm manages
    kubectl label --overwrite namespace slurm bridge.vk.io/guarded-nodes=exempt
    arguments+=(--set 'tolerations[0].operator=Exists')
elif [[ $(kubectl get nodes --selector '!node-role.kubernetes.io/control-plane' --output name | wc -l) -gt ${#managed[@]} ]]; then
    # on a node of Slurm, podbridge's own pods would be evicted a moment after their start
    other="{key: ${worker%=*}, operator: NotIn, values: [${worker#*=}]}"
    arguments+=(--values "$folder/affinity.yaml")
    cat >"$folder/affinity.yaml" <<END
affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms: [{matchExpressions: [$other]}]
END
fi
network=false
[[ -n $services ]] || network=true
sed "s/@NODES@/$nodes/; s/@IMAGE@/$(digest "$slurm_archive")/; s/hostNetwork: false/hostNetwork: $network/" hack/slurm/slurm.yaml |
    kubectl apply --namespace slurm --filename -
kubectl rollout status --namespace slurm deployment/slurm --timeout 120s
kubectl wait --namespace slurm --for condition=ready pod --selector app=slurm --timeout 60s
# not by stdin: a Secret that a command line names is in the list of processes
kubectl exec --namespace slurm deployment/slurm -- cat /etc/slurm/slurm.jwt >"$folder/auth-token"
kubectl create secret generic slurm-bridge-token --namespace podbridge --from-file="$folder/auth-token" \
    --dry-run=client --output yaml | kubectl apply --filename -
url=http://slurm.slurm.svc:6820
if [[ -z $services ]]; then
    url=http://$(kubectl get pods --namespace slurm --selector app=slurm --output 'jsonpath={.items[0].status.podIP}'):6820
fi

# --- podbridge --------------------------------------------------------------------------------------------------------
[[ -z $pools ]] || arguments+=(--set nats.enabled=true --set 'nats.pools={alpha}')
[[ -z $kueue ]] || arguments+=(--set config.queues.enabled=true)
helm upgrade --install podbridge helm/podbridge --namespace podbridge --wait --timeout 300s \
    --set "image.tag=$version" --set-string "podAnnotations.podbridge/image=$(digest "$image_archive")" --set "config.slurmRestApi=$url" --set 'config.managedNamespaces={slurm-bridge}' --set config.nodes.taint=true \
    "${arguments[@]}" "$@"
if [[ -n $kueue ]]; then
    ensure_namespace kueue-system
    kubectl apply --server-side --filename "$kueue_manifests"
    # until Kueue runs, its webhook refuses Jobs
    kubectl rollout status --namespace kueue-system deployment/kueue-controller-manager --timeout 300s
fi
[[ -z $core ]] || exit 0

# --- the first Job ----------------------------------------------------------------------------------------------------
ensure_namespace slurm-bridge
kubectl delete job hello --namespace slurm-bridge --ignore-not-found --cascade foreground --timeout 60s
if [[ -n $kueue ]]; then
    kubectl apply --filename hack/slurm/queue.yaml
    kubectl wait --for condition=Ready masterqueue/slurm --timeout 60s
    kubectl label --local --filename hack/slurm/hello.yaml kueue.x-k8s.io/queue-name=slurm --output yaml |
        kubectl apply --filename -
else
    kubectl apply --filename hack/slurm/hello.yaml
fi
kubectl wait --namespace slurm-bridge --for condition=complete job/hello --timeout 120s
kubectl logs --namespace slurm-bridge job/hello
[[ -z $kueue ]] || kubectl get workloads.kueue.x-k8s.io --namespace slurm-bridge
# podbridge cancels the job of a pod that has ended
kubectl exec --namespace slurm deployment/slurm -- scontrol --oneliner show jobs | grep -o 'JobId=[0-9]* \|JobState=[A-Z]*' | paste - -
say "podbridge is installed. Pods of the namespace slurm-bridge run on Slurm; remove everything with: $0 --delete${existing:+ --existing-cluster}"
