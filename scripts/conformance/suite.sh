#!/usr/bin/env bash
# Runs the suite in the cluster with the features that the GatewayClass declares, and what is given here beside. Its words are
# in $RUN/suite.log, its report in $RUN/report.yaml.
#   suite.sh                               everything
#   suite.sh --run-test HTTPRouteWeight    one test
#   FEATURES=HTTPRouteRetry suite.sh ...   with these features instead
. "$(dirname "$0")/common.sh"
PROFILES=${PROFILES:-GATEWAY-HTTP,GATEWAY-GRPC,GATEWAY-TLS,GATEWAY-TCP}

declared() {
    inside "$KUBELAB/bin/kubectl" get gatewayclass propylon --output 'jsonpath={.status.supportedFeatures[*].name}' | tr ' ' ,
}

FEATURES=${FEATURES:-$(declared)}
cd "$RUN"
status=0
inside timeout "${SUITE_SECONDS:-3000}" "$KUBELAB/bin/conformance.test" -test.run '^TestConformance$' -test.v \
    --gateway-class propylon --conformance-profiles "$PROFILES" --supported-features "$FEATURES" \
    --usable-address "$ENGINE_ADDRESS_PREFIX.$ENGINE_ADDRESSES_MAX" --unusable-address 198.51.100.7 \
    --organization propylon --project propylon --url https://propylon.dev --contact https://propylon.dev \
    --version "${PROPYLON_VERSION:-unreleased}" --report-output report.yaml "$@" >suite.log 2>&1 || status=$?
for outcome in PASS FAIL SKIP; do
    echo "$outcome $(grep -cE -- "^    --- $outcome" suite.log || true)"
done
grep -E -- '^    --- FAIL' suite.log || true
exit "$status"
