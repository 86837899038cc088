// client.mjs: HTTP/1.1 on a bare socket: sends exactly the bytes it is given, and reads one answer after the other.
//
// fetch() and http.request() would mend what the tests want to send broken.
import net from 'node:net'
import tls from 'node:tls'

const NO_BODY = new Set([204, 304])

export class Connection {
  constructor(url) {
    this.url = new URL(url)
    this.socket = null
    this.bytes = Buffer.alloc(0)
    this.ended = false
    this.wake = null
  }

  async open() {
    this.bytes = Buffer.alloc(0)
    this.ended = false
    const to = { host: this.url.hostname, port: Number(this.url.port || (this.url.protocol === 'https:' ? 443 : 80)) }
    const socket = this.url.protocol === 'https:' ? tls.connect({ ...to, rejectUnauthorized: false }) : net.connect(to)
    this.socket = socket
    const woken = () => { this.wake?.(); this.wake = null }
    socket.on('data', (part) => { if (this.socket === socket) { this.bytes = Buffer.concat([this.bytes, part]); woken() } })
    const over = (error) => { if (this.socket === socket) { this.ended = true; this.error = error?.message; woken() } }
    socket.on('end', () => over())
    socket.on('close', () => over())
    socket.on('error', over)
    await new Promise((resolve, reject) => {
      socket.once(this.url.protocol === 'https:' ? 'secureConnect' : 'connect', resolve)
      socket.once('error', reject)
    })
    socket.setNoDelay(true)
  }

  close() {
    this.socket?.destroy()
    this.socket = null
  }

  // Sends `raw` and reads the answer to it: { status, headers, body, cut, closed }, or { error }.
  // streamMs: after so long the rest of an endless body is not waited for, and the connection is closed (cut).
  async ask(raw, { head = false, timeoutMs = 30000, streamMs = 0 } = {}) {
    if (!this.socket || this.ended) await this.open()
    const until = Date.now() + timeoutMs
    this.socket.write(raw)
    try {
      let answer
      do answer = await this.#head(until)
      while (answer.status < 200) // 100 Continue
      await this.#body(answer, head, until, streamMs)
      if (/\bclose\b/i.test(answer.headers.connection ?? '') || answer.cut) {
        answer.closed = true
        this.close()
      }
      return answer
    } catch (error) {
      this.close()
      return { error: error.message }
    }
  }

  async #more(until) {
    if (this.ended) throw new Error(`the connection ended without an answer${this.error ? `: ${this.error}` : ''}`)
    const left = until - Date.now()
    if (left <= 0) throw new Error('no answer in time')
    let timer
    await new Promise((resolve) => {
      this.wake = resolve
      timer = setTimeout(resolve, left)
    })
    clearTimeout(timer)
  }

  async #head(until) {
    let end
    while ((end = this.bytes.indexOf('\r\n\r\n')) < 0) await this.#more(until)
    const lines = this.bytes.subarray(0, end).toString('latin1').split('\r\n')
    this.bytes = this.bytes.subarray(end + 4)
    const start = /^HTTP\/1\.1 (\d\d\d) /.exec(lines[0])
    if (!start) throw new Error(`not an answer: ${lines[0].slice(0, 100)}`)
    const headers = {}
    for (const line of lines.slice(1)) {
      const colon = line.indexOf(':')
      if (colon <= 0) throw new Error(`not a header: ${line.slice(0, 100)}`)
      const name = line.slice(0, colon).toLowerCase()
      if (name in headers) throw new Error(`the header ${name} stands twice`)
      headers[name] = line.slice(colon + 1).trim()
    }
    return { status: Number(start[1]), headers, body: Buffer.alloc(0), cut: false }
  }

  async #body(answer, head, until, streamMs) {
    if (head || NO_BODY.has(answer.status)) return
    const length = answer.headers['content-length']
    if (/chunked/i.test(answer.headers['transfer-encoding'] ?? '')) {
      await this.#chunks(answer, until, streamMs)
    } else if (length !== undefined) {
      while (this.bytes.length < Number(length)) await this.#more(until)
      answer.body = this.#take(Number(length))
    } else {
      while (!this.ended) await this.#more(until)
      answer.body = this.#take(this.bytes.length)
    }
  }

  async #chunks(answer, until, streamMs) {
    const parts = []
    const stop = streamMs ? Date.now() + streamMs : Infinity
    const more = async () => {
      if (Date.now() >= stop) throw new Cut()
      await this.#more(Math.min(until, stop)).catch((error) => {
        if (Date.now() >= stop) throw new Cut()
        throw error
      })
    }
    try {
      for (;;) {
        let end
        while ((end = this.bytes.indexOf('\r\n')) < 0) await more()
        const size = parseInt(this.bytes.subarray(0, end).toString('latin1'), 16)
        while (this.bytes.length < end + 2 + size + 2) await more()
        this.#take(end + 2)
        parts.push(this.#take(size))
        this.#take(2)
        if (size === 0) break
      }
    } catch (error) {
      if (!(error instanceof Cut)) throw error
      answer.cut = true
    }
    answer.body = Buffer.concat(parts)
  }

  #take(n) {
    const out = this.bytes.subarray(0, n)
    this.bytes = this.bytes.subarray(n)
    return out
  }
}

class Cut extends Error {}

// The bytes of a request. `headers` is a list of [name, value]; Host, Content-Length and Authorization are added unless they are there.
export function requestBytes(url, key, { method, target, headers = [], body }) {
  const list = [...headers]
  const has = (name) => list.some(([n]) => n.toLowerCase() === name)
  if (!has('host')) list.unshift(['Host', new URL(url).host])
  if (key && !has('authorization')) list.push(['Authorization', `Bearer ${key}`])
  const bytes = body === undefined ? null : Buffer.isBuffer(body) ? body : Buffer.from(body)
  if (bytes && !has('content-length') && !has('transfer-encoding')) list.push(['Content-Length', String(bytes.length)])
  const head = `${method} ${target} HTTP/1.1\r\n${list.map(([n, v]) => `${n}: ${v}\r\n`).join('')}\r\n`
  return bytes ? Buffer.concat([Buffer.from(head, 'latin1'), bytes]) : Buffer.from(head, 'latin1')
}

// One JSON request after the other, for tests that want an answer and not the bytes.
export class Client {
  constructor(url, key) {
    this.url = url
    this.key = key
    this.connection = new Connection(url)
  }

  async send(method, target, value, headers = []) {
    const list = [...headers]
    if (value !== undefined && !list.some(([n]) => n.toLowerCase() === 'content-type')) list.push(['Content-Type', 'application/json'])
    const body = value === undefined ? undefined : typeof value === 'string' || Buffer.isBuffer(value) ? value : JSON.stringify(value)
    const answer = await this.connection.ask(requestBytes(this.url, this.key, { method, target, headers: list, body }), { head: method === 'HEAD' })
    if (answer.error) throw new Error(`${method} ${target}: ${answer.error}`)
    const type = answer.headers['content-type'] ?? ''
    if (/^application\/(problem\+)?json(;|$)/.test(type) && answer.body.length) answer.json = JSON.parse(answer.body.toString())
    return answer
  }

  close() {
    this.connection.close()
  }
}
