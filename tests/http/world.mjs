// world.mjs: two tenants with a caller of each role, for the suite "main". Test files share it; each uses runs of its own.
import { Judged, id, options, plan } from './harness.mjs'

export const root = new Judged(options.key)
async function makeTenant() {
  const name = id('t')
  const of = { name, ids: {}, keys: {} }
  for (const role of ['viewer', 'operator', 'producer', 'worker', 'admin']) {
    const key = await root.must(201, 'POST', '/v1/keys', { name: role, roles: [role], tenantId: name })
    of[role] = new Judged(key.key)
    of.ids[role] = key.keyId
    of.keys[role] = key.key
  }
  return of
}
export const acme = await makeTenant()
export const other = await makeTenant()

export const put = (steps, more = {}, by = acme.operator) => by.send('POST', '/v1/plans', plan(id('plan'), steps, more)).then((answer) => answer.json)
export const held = await put([{ stepId: 'hold', type: 'wait', signal: 'go' }])
export const quick = await put([{ stepId: 'one', type: 'noop' }])

// Starts a run and says its id.
export async function start(ref, { runId = id('run'), parameters, context = {}, approval, by = acme.operator, headers } = {}) {
  await by.must(201, 'POST', '/v1/runs', { planRef: ref, context: { runId, ...context }, parameters, approval }, headers)
  return runId
}
export const run = (runId, by = acme.viewer) => by.must(200, 'GET', `/v1/runs/${encodeURIComponent(runId)}`)
export const events = async (runId, by = acme.viewer) => (await by.must(200, 'GET', `/v1/runs/${encodeURIComponent(runId)}/events?limit=1000`)).items
export const step = async (runId, stepId) => (await acme.viewer.must(200, 'GET', `/v1/runs/${runId}/steps?outputs=true`)).items.find((s) => s.stepId === stepId)
