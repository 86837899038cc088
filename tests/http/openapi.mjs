// openapi.mjs: contracts/openapi.json as a judge: is this answer one that the document allows?
//
//     const api = load()
//     api.check('GET', '/v1/runs?limit=1', 200, { 'content-type': 'application/json', ... }, buffer)   // [] or violations
//
// The schemas are compiled with ajv, which comes from npm into build/npm (CAIRN_NPM names another folder) the first time.
import { existsSync, mkdirSync, mkdtempSync, readFileSync, renameSync, rmSync } from 'node:fs'
import { createRequire } from 'node:module'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { install } from '../npm.mjs'

const repo = join(dirname(fileURLToPath(import.meta.url)), '../..')
const wanted = { ajv: '8.20.0', 'ajv-formats': '3.0.1', '@seriousme/openapi-schema-validator': '2.11.0' }

// A `require` that finds the packages; exit code 77 when the registry does not answer.
export function packages() {
  const folder = process.env.CAIRN_NPM ?? join(repo, 'build/npm')
  const name = Object.entries(wanted).map(([n, v]) => `${n}@${v}`).join('+').replaceAll('/', '_').replaceAll('@', '')
  const place = join(folder, name)
  if (!existsSync(join(place, 'node_modules/ajv/package.json'))) placePackages(folder, place)
  return createRequire(join(place, 'package.json'))
}

// Into a folder of its own that then gets its name: two tests may do this at once.
function placePackages(folder, place) {
  mkdirSync(folder, { recursive: true })
  const fresh = mkdtempSync(join(folder, '.new-'))
  process.on('exit', () => rmSync(fresh, { recursive: true, force: true })) // also when npm fails
  install(fresh, Object.entries(wanted).map(([n, v]) => `${n}@${v}`))
  try {
    renameSync(fresh, place)
  } catch (error) {
    if (!existsSync(place)) throw error // else another one was faster
  }
}

export const METHODS = ['get', 'put', 'post', 'delete', 'options', 'head', 'patch', 'trace']
const escapePart = (part) => encodeURIComponent(String(part).replaceAll('~', '~0').replaceAll('/', '~1'))
export const pointer = (...parts) => '#' + parts.map((part) => '/' + escapePart(part)).join('')

// The value at a pointer such as #/components/schemas/Run; undefined if there is none.
export function lookUp(doc, ref) {
  if (!ref.startsWith('#/')) return undefined
  let at = doc
  for (const part of ref.slice(2).split('/')) {
    at = at?.[decodeURIComponent(part).replaceAll('~1', '/').replaceAll('~0', '~')]
  }
  return at
}

// CAIRN_OPENAPI names another document, to try the tools themselves.
export function readDocument() {
  return JSON.parse(readFileSync(process.env.CAIRN_OPENAPI ?? join(repo, 'contracts/openapi.json'), 'utf8'))
}

export function load(doc = readDocument()) {
  const require = packages()
  const Ajv = require('ajv/dist/2020.js').default
  const ajv = new Ajv({ strict: false, allErrors: false, validateFormats: true })
  require('ajv-formats').default(ajv)
  ajv.addSchema({ ...doc, $id: 'cairn' })
  return new Api(doc, ajv)
}

class Api {
  constructor(doc, ajv) {
    this.doc = doc
    this.ajv = ajv
    this.compiled = new Map()
    this.operations = []
    for (const [path, item] of Object.entries(doc.paths)) {
      for (const method of METHODS) {
        if (item[method]) this.operations.push(this.#operation(path, method, item))
      }
    }
  }

  #operation(path, method, item) {
    const op = item[method]
    const parameters = [...(item.parameters ?? []), ...(op.parameters ?? [])].map((p) => this.resolve(p))
    return { id: op.operationId, path, method: method.toUpperCase(), op, parameters, pointer: pointer('paths', path, method) }
  }

  resolve(node) {
    return node?.$ref ? { ...lookUp(this.doc, node.$ref), ...(node.description ? { description: node.description } : {}) } : node
  }

  // What is wrong with `value` under the schema at a pointer into the document, or null.
  invalid(ref, value) {
    let validate = this.compiled.get(ref)
    if (!validate) {
      validate = this.ajv.compile({ $ref: 'cairn' + ref })
      this.compiled.set(ref, validate)
    }
    if (validate(value)) return null
    const e = validate.errors[0]
    const extra = e.params?.additionalProperty ?? e.params?.allowedValues ?? ''
    return `${e.instancePath || '/'} ${e.message}${extra === '' ? '' : ` (${extra})`}`
  }

  // { item, template } of a path; a fixed segment beats a parameter. With a method (in lower case), one that takes it comes first.
  route(path, method) {
    const parts = path.split('?')[0].split('/')
    let best = null
    for (const template of Object.keys(this.doc.paths)) {
      const want = template.split('/')
      if (want.length !== parts.length) continue
      const fits = want.every((w, i) => (w.startsWith('{') ? parts[i] !== '' : w === parts[i]))
      const fixed = want.filter((w) => !w.startsWith('{')).length
      const item = this.doc.paths[template]
      const takes = method in item || (method === 'head' && 'get' in item)
      if (fits && (!best || takes > best.takes || (takes === best.takes && fixed > best.fixed))) best = { template, fixed, takes, item }
    }
    return best
  }

  // The violations of the document by one answer. `headers` has lower-case names; `body` is a Buffer.
  // cut: the reader left before the end of a stream, so its last line may be half of one.
  check(method, path, status, headers, body, { cut = false } = {}) {
    const verb = method.toLowerCase()
    // GET /v1/effects/requeue is refused as an effect of that name would be: there is none.
    const route = this.route(path, status >= 400 ? verb : undefined)
    const op = route?.item[verb] ?? (verb === 'head' ? route?.item.get : undefined)
    const known = op === undefined ? null : pointer('paths', route.template, route.item[verb] ? verb : 'get', 'responses', status)
    const found = this.#response(op, known, status, body)
    if (!found) {
      if (!route) return [`unknown route, and ${status} is not an answer to any request`]
      return [`${status} is not documented for ${op ? op.operationId : `${method} ${route.template}`}`]
    }
    const wrong = []
    this.#checkHeaders(found, headers, wrong)
    this.#checkBody(found, method, status, headers, body, cut, wrong)
    return wrong
  }

  // { response, at }: where the document has it. Refusals by the connection look like any other but for their code.
  #response(op, known, status, body) {
    const at = (ref) => {
      const node = lookUp(this.doc, ref)
      return node && { at: node.$ref ?? ref, response: this.resolve(node) }
    }
    if (/"code":"HTTP_/.test(body.subarray(0, 2000).toString('latin1'))) return at(pointer('x-cairn-connection', status))
    if (op?.responses[status]) {
      // ROUTE_NOT_FOUND and the like may also come from a path that has operations.
      return at(known)
    }
    return at(pointer('x-cairn-any-request', status))
  }

  #checkHeaders({ response, at }, headers, wrong) {
    for (const [name, node] of Object.entries(response.headers ?? {})) {
      const header = this.resolve(node)
      const value = headers[name.toLowerCase()]
      if (value === undefined) {
        if (header.required) wrong.push(`header ${name} is missing`)
        continue
      }
      const bad = this.invalid((node.$ref ?? at + pointer('headers', name).slice(1)) + '/schema', value)
      if (bad) wrong.push(`header ${name}: ${value}: ${bad}`)
    }
  }

  #checkBody({ response, at }, method, status, headers, body, cut, wrong) {
    const type = (headers['content-type'] ?? '').split(';')[0].trim().toLowerCase()
    if (method === 'HEAD' || status === 204 || status === 304) {
      if (body.length > 0) wrong.push(`an answer ${status} to ${method} has no body`)
      return
    }
    if (!response.content) {
      if (body.length > 0) wrong.push('a body, and none is documented')
      return
    }
    const media = response.content[type]
    if (!media) {
      wrong.push(`content type "${headers['content-type'] ?? ''}" is not documented for ${status}`)
      return
    }
    const ref = at + pointer('content', type).slice(1)
    let text
    try {
      text = new TextDecoder('utf-8', { fatal: true }).decode(body)
    } catch {
      if (!cut) wrong.push('the body is not UTF-8')
      return
    }
    if (method === 'GET' && type === 'application/x-ndjson') text = text.replace(/^\n/gm, '') // signs of life
    if (media['x-cairn-item-schema']) this.#checkItems(ref + '/x-cairn-item-schema', itemsOf(type, text, cut, wrong), wrong)
    else if (type.endsWith('json')) this.#checkJson(ref + '/schema', text, status, headers, wrong)
  }

  #checkItems(ref, items, wrong) {
    for (const [i, item] of items.entries()) {
      const bad = this.invalid(ref, item)
      if (bad) wrong.push(`item ${i + 1}: ${bad}: ${JSON.stringify(item).slice(0, 300)}`)
      if (wrong.length > 5) return
    }
  }

  #checkJson(ref, text, status, headers, wrong) {
    let value
    try {
      value = JSON.parse(text)
    } catch (error) {
      wrong.push(`the body is not JSON: ${error.message}: ${text.slice(0, 200)}`)
      return
    }
    const bad = this.invalid(ref, value)
    if (bad) wrong.push(`body: ${bad}: ${text.slice(0, 400)}`)
    if (!(headers['content-type'] ?? '').startsWith('application/problem+json') || bad) return
    if (value.status !== status) wrong.push(`the problem says ${value.status}, the answer ${status}`)
    if (value.type !== `urn:cairn:problem:${value.code}`) wrong.push(`type ${value.type} with code ${value.code}`)
    if (value.requestId !== undefined && value.requestId !== headers['x-request-id']) wrong.push('requestId is not that of X-Request-Id')
    if (status === 401 && !headers['www-authenticate']) wrong.push('401 without WWW-Authenticate')
  }
}

// The JSON values of an NDJSON or SSE body.
export function itemsOf(type, text, cut = false, wrong = []) {
  const items = []
  const take = (json) => {
    try {
      items.push(JSON.parse(json))
    } catch {
      wrong.push(`not JSON: ${json.slice(0, 200)}`)
    }
  }
  if (type === 'application/x-ndjson') {
    const lines = text.split('\n')
    const last = lines.pop()
    if (last !== '' && !cut) wrong.push('the last line has no end')
    lines.forEach((line) => (line === '' ? wrong.push('an empty line') : take(line)))
    return items
  }
  const blocks = text.split('\n\n')
  const last = blocks.pop()
  if (last !== '' && !cut) wrong.push('the last event has no end')
  for (const block of blocks) {
    const data = []
    for (const line of block.split('\n')) {
      const field = /^(id|event|data|retry)?:/.exec(line)
      if (!field && line !== '') wrong.push(`not a line of an event stream: ${line.slice(0, 100)}`)
      if (line.startsWith('data:')) data.push(line.slice(5).trimStart())
    }
    if (data.length > 0) take(data.join('\n'))
  }
  return items
}
